"use strict";
{
  const STEP = 200; // rows that are drawn at once: a browser draws ten thousand slowly
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const made = (tag, text, ...classes) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    element.classList.add(...classes);
    return element;
  };
  const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

  const nodes = data.nodes.map((row) => {
    const [name, outcome, engines, group, containers, gpu] = row;
    const text = [name, outcome, engines, data.groups[group].title].join("\n").toLowerCase();
    return { name, outcome, engines, group, containers, gpu, text };
  });
  const groups = data.groups.map((group, number) => ({ ...group, number, low: group.text.toLowerCase() }));
  const shown = { groups: STEP, nodes: STEP };

  const asked = () => {
    const said = new URLSearchParams(location.hash.slice(1));
    return { words: (said.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean), outcome: said.get("outcome") ?? "" };
  };

  const ask = (changes) => {
    const said = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(changes)) value ? said.set(key, value) : said.delete(key);
    history.replaceState(null, "", `#${said}`);
    shown.groups = shown.nodes = STEP;
    draw();
  };

  const drawnText = (text) => {
    const pre = made("pre");
    for (const line of text.split("\n")) {
      const kind = /^\s*\+(?!\+\+ )/.test(line) ? ["added"] : /^\s*-(?!-- )/.test(line) ? ["gone"] : [];
      pre.append(made("span", line, ...kind), "\n");
    }
    return pre;
  };

  const drawnGroup = ({ number, outcome, title, text }, count) => {
    const details = made("details");
    details.id = `change-${number + 1}`;
    const summary = made("summary");
    summary.append(made("b", counted(count, "node", "nodes")), ": ", made("span", outcome, "outcome", outcome), `: ${title}`);
    details.append(summary);
    details.addEventListener("toggle", () => { if (details.open && !details.querySelector("pre")) details.append(drawnText(text)); });
    return details;
  };

  const drawnNode = ({ name, outcome, engines, group, containers, gpu }) => {
    const row = made("tr");
    const change = made("td");
    const link = made("a", data.groups[group].title);
    link.href = `#change-${group + 1}`;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const details = at(`change-${group + 1}`);
      if (details) { details.open = true; details.scrollIntoView(); }
    });
    change.append(link);
    const number = (value) => made("td", value === null ? "-" : value.toLocaleString("en"), "number");
    row.append(made("td", name), made("td", outcome, "outcome", outcome), made("td", engines), number(containers), number(gpu), change);
    COLUMNS.forEach(([title], column) => { row.children[column].dataset.title = title; }); // of a row on a narrow screen
    return row;
  };

  const COLUMNS = [["Node"], ["Outcome"], ["Engine"], ["Containers", "number"], ["with GPU", "number"], ["Change"]];

  const more = (button, kind, all, word) => {
    button.hidden = all <= shown[kind];
    button.textContent = `Show ${Math.min(STEP, all - shown[kind])} more of ${counted(all, word, `${word}s`)}`;
  };

  const draw = () => {
    const { words, outcome } = asked();
    const inText = new Map(groups.map((each) => [each.number, words.filter((word) => !each.low.includes(word))]));
    const found = nodes.filter((node) => (!outcome || node.outcome === outcome)
      && inText.get(node.group).every((word) => node.text.includes(word)));
    const counts = new Map();
    for (const node of found) counts.set(node.group, (counts.get(node.group) ?? 0) + 1);
    const left = groups.filter((each) => counts.has(each.number));
    const rank = (each) => data.outcomes.indexOf(each.outcome); // the worst first
    left.sort((one, other) => rank(one) - rank(other) || counts.get(other.number) - counts.get(one.number));
    at("groups").replaceChildren(...left.slice(0, shown.groups).map((each) => drawnGroup(each, counts.get(each.number))));
    at("nodes").replaceChildren(...found.slice(0, shown.nodes).map(drawnNode));
    more(at("more-groups"), "groups", left.length, "change");
    more(at("more-nodes"), "nodes", found.length, "node");
    at("found").textContent = `${counted(found.length, "node", "nodes")} of ${nodes.length.toLocaleString("en")}, ${counted(left.length, "change", "changes")}`;
    for (const button of at("outcomes").children) button.setAttribute("aria-pressed", String(button.value === outcome));
  };

  const sum = (key) => nodes.reduce((total, node) => total + (node[key] ?? 0), 0);
  at("about").textContent = `${data.about} ${counted(sum("containers"), "running container", "running containers")}`
    + `, ${sum("gpu").toLocaleString("en")} of them with a GPU, are on engines that would be reloaded.`;
  for (const outcome of data.outcomes) {
    const count = nodes.filter((node) => node.outcome === outcome).length;
    const button = made("button", `${outcome} `, outcome);
    button.append(made("b", count.toLocaleString("en")));
    button.type = "button";
    button.value = outcome;
    button.addEventListener("click", () => ask({ outcome: asked().outcome === outcome ? "" : outcome }));
    at("outcomes").append(button);
    if (count) {
      const part = made("span", undefined, outcome);
      part.style.flexGrow = count;
      part.title = `${outcome}: ${counted(count, "node", "nodes")}`;
      at("bar").append(part);
    }
  }
  at("bar").setAttribute("aria-label", [...at("bar").children].map((part) => part.title).join(", "));
  for (const [title, ...classes] of COLUMNS) {
    const head = made("th", title, ...classes);
    head.scope = "col";
    at("columns").append(head);
  }
  at("search").value = new URLSearchParams(location.hash.slice(1)).get("q") ?? "";
  at("search").addEventListener("input", () => ask({ q: at("search").value }));
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  for (const kind of ["groups", "nodes"]) at(`more-${kind}`).addEventListener("click", () => { shown[kind] += STEP; draw(); });
  addEventListener("hashchange", () => { at("search").value = new URLSearchParams(location.hash.slice(1)).get("q") ?? ""; draw(); });
  draw();
}
