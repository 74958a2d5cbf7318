// Keys, focus and renewal. Everything works without this file: tiles are checkboxes, actions are forms.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const stored = { get: name => sessionStorage.getItem(name), set: (name, value) => sessionStorage.setItem(name, value) };

// How many tiles an action is about.
const tiles = () => all(".tiles input[type=checkbox]");
const count = () => all("[data-count]").forEach(shown => {
  const chosen = tiles().filter(tile => tile.checked).length;
  shown.textContent = chosen || shown.dataset.count;
});
document.addEventListener("change", count);

// After an action the page stands where it stood, and what had the focus has it. Another view of the same tiles keeps
// which are selected, too.
const place = selected => stored.set("place", JSON.stringify({
  path: location.pathname, top: scrollY, id: document.activeElement?.id, selected,
}));
document.addEventListener("submit", () => place([]));
document.addEventListener("click", event => {
  if (event.target.closest("[data-stays]")) place(tiles().filter(tile => tile.checked).map(tile => tile.value));
});
const back = JSON.parse(stored.get("place") ?? "null");
sessionStorage.removeItem("place");
if (back && !document.querySelector("[role=alert]") && back.path === location.pathname) {
  tiles().filter(tile => back.selected.includes(tile.value)).forEach(tile => { tile.checked = true; });
  scrollTo({ top: back.top, behavior: "instant" });
  (document.getElementById(back.id) ?? document.getElementById("main")).focus({ preventScroll: true });
}
document.querySelector("[role=alert]")?.focus();

// What is typed outlives a reload and a session that ended, in this tab alone.
const keep = within => all("[data-keep]", within).forEach(field => {
  const name = `keep ${location.pathname} ${field.id || field.name}`;
  if (!field.value && stored.get(name)) field.value = stored.get(name);
  field.addEventListener("input", () => stored.set(name, field.value));
  field.form?.addEventListener("submit", () => sessionStorage.removeItem(name));
});
keep(document);

// Parts that renew themselves while somebody looks: only what changed is put in. What has the focus keeps it, and what
// is looked at stays where it is, though more comes before it.
const RENEW_MS = 5000, IDLE_MS = 600_000;
let acted = Date.now();
for (const kind of ["keydown", "pointermove", "touchstart", "scroll"]) addEventListener(kind, () => { acted = Date.now(); }, { passive: true });
const find = (part, href) => part.querySelector(`[href="${CSS.escape(href)}"]`);
const renew = async () => {
  const parts = all("[data-renew]");
  if (document.hidden || !parts.length || Date.now() - acted > IDLE_MS) return;
  const answer = await fetch(location.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const other = fresh.getElementById(part.id);
    if (!other || other.innerHTML === part.innerHTML || part.contains(document.activeElement?.closest("form"))) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolls = getComputedStyle(part).overflowY === "auto", upper = scrolls ? part.getBoundingClientRect().top : 0;
    const top = link => link.getBoundingClientRect().top;
    const looked = all("[href]", part).filter(link => link.getBoundingClientRect().bottom > upper)
      .map(link => [link.getAttribute("href"), top(link)]);
    const held = scrolls ? part.scrollTop : scrollY;
    part.replaceChildren(...other.childNodes);
    keep(part);
    // The first of what was in sight that is still there.
    const [href, before] = looked.find(([href]) => find(part, href)) ?? [];
    if (scrolls) part.scrollTop = held;
    if (href) (scrolls ? part : window).scrollBy({ top: top(find(part, href)) - before, behavior: "instant" });
    if (focused) find(part, focused)?.focus({ preventScroll: true });
  }
};
setInterval(renew, RENEW_MS);

// Files that are dropped on the form are chosen by it.
const drop = document.getElementById("drop");
drop?.addEventListener("dragover", event => event.preventDefault());
drop?.addEventListener("drop", event => {
  event.preventDefault();
  drop.elements.file.files = event.dataTransfer.files;
  drop.requestSubmit();
});

// Keys
const off = () => localStorage.getItem("keys") === "off";
const help = document.getElementById("keys");
const toggle = document.getElementById("keys-off");
if (toggle) {
  toggle.checked = !off();
  toggle.addEventListener("change", () => localStorage.setItem("keys", toggle.checked ? "on" : "off"));
}
all("[data-opens=keys]").forEach(button => { button.hidden = false; button.addEventListener("click", () => help.showModal()); });
const columns = () => {
  const found = tiles(), top = found[0]?.closest("li").offsetTop;
  return Math.max(1, found.filter(tile => tile.closest("li").offsetTop === top).length);
};
const go = step => {
  const found = tiles(), at = found.indexOf(document.activeElement);
  const tile = found[at < 0 ? 0 : Math.max(0, Math.min(found.length - 1, at + step))];
  tile?.focus();
  tile?.closest("li").scrollIntoView({ block: "nearest" });
};
const click = name => document.querySelector(`[data-key="${name}"]`)?.click();
// To another cluster; in the list of them, from one to another.
const turn = (name, step) => {
  const cards = all(".cards a"), at = cards.indexOf(document.activeElement);
  cards.length ? cards[at < 0 ? 0 : Math.max(0, Math.min(cards.length - 1, at + step))].focus() : click(name);
};
const choose = how => { tiles().forEach(tile => { tile.checked = how; }); count(); };
const keys = {
  j: () => turn("next", 1), k: () => turn("previous", -1), m: () => click("alike"), v: () => click("view"), s: () => click("split"), u: () => click("undo"),
  f: () => document.querySelector("[data-key=name]")?.focus(), a: () => choose(true), n: () => choose(false),
  x: () => { const tile = tiles().find(one => one === document.activeElement); if (tile) { tile.checked = !tile.checked; count(); } },
  ArrowRight: () => go(1), ArrowLeft: () => go(-1), ArrowDown: () => go(columns()), ArrowUp: () => go(-columns()),
  "?": () => help?.showModal(),
};
document.addEventListener("keydown", event => {
  const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (typing && event.key === "Escape") return event.target.blur();
  if (off() || typing || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || help?.open) return;
  if (event.key.startsWith("Arrow") && !tiles().length) return;
  keys[event.key]();
  event.preventDefault();
});
count();

// A moment in the zone of whoever looks.
all("time").forEach(shown => { shown.title += ` (${new Date(shown.dateTime).toLocaleString()} here)`; });
