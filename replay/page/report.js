"use strict";
// Charts are drawn when they come into view, so that a report with many of them opens at once.
const charts = JSON.parse(document.getElementById("charts").textContent);
const draw = (place) => {
  const chart = charts[Number(place.dataset.chart)];
  Plotly.newPlot(place, chart.data, chart.layout, { responsive: true, displaylogo: false });
};
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "300px" });
for (const place of document.querySelectorAll(".chart")) seen.observe(place);
