// Signing in and out: a code or a token becomes a cookie that no script can read.

const PATH = "v1/session";

/** Begins a session; returns "", or why that failed. */
export async function signIn(proof) {
  let answer;
  try {
    answer = await fetch(PATH, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(proof) });
  } catch {
    return "The server cannot be reached.";
  }
  if (answer.ok) return "";
  const problem = await answer.json().catch(() => ({}));
  return `Signing in failed: ${problem.detail ?? `the server answered ${answer.status}`}.`;
}

export async function signOut() {
  await fetch(PATH, { method: "DELETE" });
}

/** Whether there is a session now: another tab may have begun it. */
export async function isSignedIn() {
  try { return (await fetch(PATH)).ok; } catch { return false; }
}

/** What stands behind the `#` of the page that signs in: a code, and the address of the page to return to.  An address begins with
    `/`; `dorm dashboard` of earlier versions writes the code alone. */
export function readHash(hash) {
  const text = hash.replace(/^#/, "");
  if (text.startsWith("/")) return { code: "", address: hash };
  const fields = new URLSearchParams(text), address = fields.get("to") ?? "";
  const code = fields.get("code") ?? (/^[\w-]{20,}$/.test(text) ? text : "");
  return { code, address: address.startsWith("/") ? `#${address}` : "" };
}
