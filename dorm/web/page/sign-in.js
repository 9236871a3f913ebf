// The page that asks who one is.
//
// `dorm dashboard` opens it with a code behind the `#` (`#code=…`), which browsers send to no server.  The code leaves the address
// before anything else happens, and is good once.  Whoever opened a page without a session comes here with the page's own address
// behind the `#` (`#/app/x?at=2500`), and returns there.

import { isSignedIn, readHash, signIn } from "./session.js";

const notice = document.getElementById("said");
let address = "";

async function enter(proof) {
  notice.textContent = "Signing in …";
  const problem = await signIn(proof);
  if (problem) notice.textContent = problem; else leave();
}

const leave = () => location.replace(`./${location.search}${address}`);

function read() {
  const { code, address: to } = readHash(location.hash);
  address = to || address;
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search + address);
  enter({ code });
}

document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter({ token: document.getElementById("token").value.trim() });
});
// `dorm dashboard` signs the browser in on a tab of its own.
addEventListener("focus", async () => { if (await isSignedIn()) leave(); });
addEventListener("hashchange", read);
read();
