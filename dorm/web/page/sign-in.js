// Signing in: a code or a token becomes a cookie that no script can read.
//
// `dorm dashboard` opens this page with a code behind the `#`, which browsers send to no server.  It leaves the address before
// anything else happens, and is good once.

const said = document.getElementById("said");

async function signIn(proof) {
  said.textContent = "Signing in …";
  let answer;
  try {
    answer = await fetch("v1/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(proof) });
  } catch {
    said.textContent = "The server cannot be reached.";
    return;
  }
  if (answer.ok) {
    location.replace("./");
    return;
  }
  const found = await answer.json().catch(() => ({}));
  said.textContent = `Signing in failed: ${found.detail ?? `the server answered ${answer.status}`}.`;
}

function signInByAddress() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  signIn({ code });
}

document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn({ token: document.getElementById("token").value.trim() });
});
addEventListener("hashchange", signInByAddress);
signInByAddress();
