// Where each node lies on the grid: groups as blocks, nodes as cells, in units that fit the whole cluster into the picture.

const GAP = 10, HEAD = 18;
/** Pixels of the largest cell: a cluster of a few nodes fills its picture. */
const LARGEST = 520;

/** The groups by a label, each with its node ids; one without a name where there is no label. */
export function groupsOf(model, key) {
  if (!key) return [{ name: "", nodes: model.sorted }];
  const found = new Map();
  for (const id of model.sorted) {
    const value = model.nodes.get(id).labels?.[key] ?? "";
    if (!found.has(value)) found.set(value, []);
    found.get(value).push(id);
  }
  return [...found].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true })).map(([name, nodes]) => ({ name, nodes }));
}

/** Lays groups out in rows; the largest cell that fits.  Returns groups with boxes, and a cell for each node. */
export function layOut(groups, width, height) {
  const named = groups.some((group) => group.name !== "") || groups.length > 1;
  let low = 2, high = LARGEST;
  for (let step = 0; step < 14; step++) {
    const middle = (low + high) / 2;
    if (flow(groups, middle, width, named).height <= height) low = middle; else high = middle;
  }
  return flow(groups, low, width, named);
}

function flow(groups, cell, width, named) {
  const most = Math.max(1, Math.floor((width + 1) / cell));
  const blocks = [];
  let x = 0, y = 0, line = 0;
  for (const group of groups) {
    const count = group.nodes.length;
    const columns = groups.length === 1 ? Math.min(most, count || 1) : Math.min(most, Math.max(1, Math.ceil(Math.sqrt(count * 1.6))));
    const rows = Math.ceil(count / columns);
    const wide = columns * cell, high = rows * cell + (named ? HEAD : 0);
    if (x > 0 && x + wide > width) { x = 0; y += line + GAP; line = 0; }
    blocks.push({ ...group, x, y, width: wide, height: high, columns, top: y + (named ? HEAD : 0) });
    x += wide + GAP;
    line = Math.max(line, high);
  }
  const cells = new Map();
  const order = [];
  for (const block of blocks) {
    block.nodes.forEach((id, index) => {
      const one = { id, x: block.x + (index % block.columns) * cell, y: block.top + Math.floor(index / block.columns) * cell, block };
      cells.set(id, one);
      order.push(one);
    });
  }
  return { cell, blocks, cells, order, named, width, height: y + line };
}
