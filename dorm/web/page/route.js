// The address: which view, of which moment.  `#/app/ID?at=118.2&vs=90&group=rack` restores exactly what someone saw.

/** `home` is the page of an address that names none. */
export function parse(hash, home = "cluster") {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(safe);
  const query = Object.fromEntries(new URLSearchParams(search));
  const { at = null, vs = null, ...rest } = query;
  return { page: parts[0] || home, id: parts[1] ?? "", at: at || null, vs: vs || null, q: rest };
}

function safe(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

export function format({ page, id, at, vs, q }) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries({ at, vs, ...q })) if (value !== null && value !== undefined && value !== "") search.set(name, value);
  const path = [page, id].filter(Boolean).map(encodeURIComponent).join("/");
  const text = search.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}
