"use strict";
// Keys, the token's tip, marks to compare, and new trajectories without a reload. Text of a model
// is only ever written as text; new parts of a page are taken over from a parsed document.

const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const shared = document.body.classList.contains("shared");

// ---- light and dark -----------------------------------------------------------------------------
const store = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* not kept, then */ } },
};
const theme = store.get("theme");
if (theme) document.documentElement.dataset.theme = theme;
function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  store.set("theme", root.dataset.theme);
}
find("#theme").addEventListener("click", toggleTheme);
find("#help-button").addEventListener("click", () => find("#help").showModal());

// ---- rows ---------------------------------------------------------------------------------------
let at = -1;
function move(by) {
  const rows = all("[data-row]");
  if (!rows.length) return;
  at = Math.max(0, Math.min(rows.length - 1, at + by));
  rows.forEach((row, i) => row.classList.toggle("at", i === at));
  rows[at].scrollIntoView({ block: "nearest" });
}
const current = () => find("[data-row].at");

// ---- marks to compare ---------------------------------------------------------------------------
const most = 4;
const picked = new Set();
function showPicked() {
  const box = find("#picked");
  if (!box) return;
  box.hidden = picked.size === 0;
  find("span", box).textContent = `${picked.size} of ${most} marked`;
  const query = [...picked].map((trace) => `t=${encodeURIComponent(trace)}`).join("&");
  find("a", box).href = `/compare?${query}`;
  all(".pick").forEach((pick) => { pick.checked = picked.has(pick.value); });
}
document.addEventListener("change", (event) => {
  if (!event.target.classList.contains("pick")) return;
  if (!event.target.checked) picked.delete(event.target.value);
  else if (picked.size < most) picked.add(event.target.value);
  showPicked();
});

// ---- keys ---------------------------------------------------------------------------------------
let pending = "";
function follow(key) {
  const link = all("[data-key]").filter((a) => a.dataset.key === key).pop();
  if (link) link.click();
  return Boolean(link);
}
const actions = {
  j: () => move(1),
  k: () => move(-1),
  t: toggleTheme,
  "?": () => find("#help").showModal(),
  "/": () => { const q = find("#q"); if (q) { q.focus(); q.select(); } },
  Enter: () => {
    const row = current();
    if (!row) return false;
    const link = find("[data-open]", row);
    if (link) link.click();
    else if (row.tagName === "DETAILS") row.open = !row.open;
    return true;
  },
  x: () => { const row = current(); const pick = row && find(".pick", row); if (pick) pick.click(); },
  c: () => { if (picked.size > 1) find("#picked a").click(); else follow("c"); },
};
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
  if (pending === "g" && event.key.length === 1) {
    pending = "";
    if (follow(`g ${event.key}`)) event.preventDefault();
    return;
  }
  if (event.key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1200); return; }
  const onControl = event.target.matches("a, button, summary");
  if (event.key === "Enter" && onControl) return;
  const action = actions[event.key];
  if (action) { if (action() !== false) event.preventDefault(); }
  else if (follow(event.key)) event.preventDefault();
});

// ---- the token under the pointer ----------------------------------------------------------------
const tip = find("#tip");
document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest && event.target.closest(".strip i[data-id]");
  tip.hidden = !cell;
  if (!cell) return;
  const { p, id, l } = cell.dataset;
  const chance = l === undefined ? "" : `\nlog p ${Number(l).toFixed(3)}  p ${Math.exp(Number(l)).toPrecision(3)}`;
  const mask = cell.classList.contains("m") ? "\nmasked: not the policy's" : "";
  tip.textContent = `token ${p}  id ${id}\n“${cell.textContent}”${chance}${mask}`;
  const box = cell.getBoundingClientRect();
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
  // The rules of the sheet, not of the element: the policy allows no inline style in markup, and
  // setting single properties from a script is not that.
  tip.style.left = `${Math.min(box.left, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = below ? `${box.bottom + 6}px` : `${box.top - tip.offsetHeight - 6}px`;
});

// ---- live ---------------------------------------------------------------------------------------
let version = Number(document.documentElement.dataset.version);
// As they were served: what has not changed is left alone, with its selection and its place.
const served = new Map(all("[data-live]").map((region) => [region.dataset.live, region.innerHTML]));
let waiting = false;
async function refresh() {
  const answer = await fetch(location.href, { headers: { "X-Refresh": "1" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const known = new Set(all("[data-trace]").map((row) => row.dataset.trace));
  const chosen = current() && current().dataset.trace;
  const open = all("details").map((one) => one.open);
  for (const region of all("[data-live]")) {
    const fresh = find(`[data-live="${region.dataset.live}"]`, page);
    if (!fresh || fresh.innerHTML === served.get(region.dataset.live)) continue;
    served.set(region.dataset.live, fresh.innerHTML);
    for (const row of all("[data-trace]", fresh)) {
      if (known.size && !known.has(row.dataset.trace)) row.classList.add("new");
      if (chosen && row.dataset.trace === chosen) row.classList.add("at");
    }
    region.replaceWith(document.adoptNode(fresh));
  }
  const bar = find("#progress");
  if (bar && !find("#progress", page)) bar.remove();
  else if (bar) bar.replaceWith(document.adoptNode(find("#progress", page)));
  const details = all("details");
  if (details.length === open.length) details.forEach((one, i) => { one.open = open[i]; });
  version = Number(page.documentElement.dataset.version);
  showPicked();
}
async function look() {
  if (waiting || document.hidden) return;
  waiting = true;
  const pulse = find("#pulse");
  try {
    const answer = await fetch("/changes");
    const news = await answer.json();
    pulse.classList.remove("lost");
    if (news.version !== version) {
      await refresh();
      pulse.classList.add("new");
      setTimeout(() => pulse.classList.remove("new"), 2500);
    }
  } catch {
    pulse.classList.add("lost");
  } finally {
    waiting = false;
  }
}
if (!shared) setInterval(look, 1000);
