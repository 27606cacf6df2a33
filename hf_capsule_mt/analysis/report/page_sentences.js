// The sentences of a report: filter, sort, compare two systems. Words that the reference lacks are marked.
const reportSentences = (() => {
  "use strict";
  const { make } = capsuleParts;
  const AT_ONCE = 20;

  // The longest common subsequence of a translation and its reference: which words of the translation are not in it,
  // and which words of the reference are missing before each word of the translation, or after the last one.
  function differences(translation, reference) {
    const [rows, columns] = [translation.length, reference.length];
    const best = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
    for (let i = rows - 1; i >= 0; i -= 1) {
      for (let j = columns - 1; j >= 0; j -= 1) {
        best[i][j] = translation[i] === reference[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
      }
    }
    const extra = new Array(rows).fill(true);
    const missing = Array.from({ length: rows + 1 }, () => []);
    let [i, j] = [0, 0];
    while (i < rows && j < columns) {
      if (translation[i] === reference[j]) { extra[i] = false; i += 1; j += 1; }
      else if (best[i + 1][j] >= best[i][j + 1]) i += 1;
      else { missing[i].push(reference[j]); j += 1; }
    }
    missing[rows].push(...reference.slice(j));
    return { extra, missing };
  }

  const words = (text) => text.split(/\s+/).filter((word) => word);

  function marked(text, reference) {
    const all = words(text);
    const { extra, missing } = differences(all, words(reference));
    const gap = (place) => (missing[place].length && !(extra[place] || extra[place - 1])
      ? [make("span", { class: "gap", title: `the reference has “${missing[place].join(" ")}” here` }, "‸"), " "] : []);
    return make("span", { dir: "auto" }, all.map((word, index) =>
      [gap(index), extra[index] ? make("mark", {}, word) : word, " "]), gap(all.length));
  }

  function line(name, content, className) {
    return [make("dt", { dir: "auto" }, name), make("dd", { class: className, dir: "auto" }, content)];
  }

  function show(block, openMap) {
    const several = block.systems.length > 1;
    const state = { one: 0, other: several ? 1 : 0, sort: several ? "difference" : "worst", text: "", why: "", bounds: null };
    let count = AT_ONCE;
    const list = make("div", { class: "sentence-list" });
    const matches = make("p", { class: "matches", "aria-live": "polite" });
    const more = make("button", { type: "button", class: "more", onclick: () => { count += AT_ONCE; update(); } },
      "show more");
    const select = (name, options, value, onChange) => make("label", {}, name, " ", make("select", {
      onchange: (event) => { onChange(event.target.value); count = AT_ONCE; update(); } },
      options.map(([key, text]) => make("option", { value: key, selected: String(key) === String(value) }, text))));
    const systems = block.systems.map((name, index) => [index, name]);
    const sorts = [
      ...(several ? [["difference", "first better by most"], ["reverse", "second better by most"]] : []),
      ["worst", "first system: worst first"], ["best", "first system: best first"],
      ["longest", "longest source first"], ["order", "order of the test set"],
    ];
    const box = make("input", { type: "search", placeholder: "words, or a number of a sentence", "aria-label": "filter sentences",
      oninput: (event) => { state.text = event.target.value; count = AT_ONCE; update(); } });
    const whyOptions = [["", "all"], ...block.reasons.map((reason) => [reason, reason])];
    const controls = make("div", { class: "controls" }, box,
      several ? [select("compare", systems, 0, (value) => { state.one = Number(value); }),
        select("with", systems, 1, (value) => { state.other = Number(value); })] : null,
      select("sort", sorts, state.sort, (value) => { state.sort = value; }),
      select("chosen as", whyOptions, "", (value) => { state.why = value; }));
    const bounds = make("button", { type: "button", class: "bounds", hidden: "", title: "remove this filter",
      onclick: () => { state.bounds = null; update(); } });

    const score = (row, system) => row.scores[system];
    const orders = {
      difference: (row) => score(row, state.other) - score(row, state.one),
      reverse: (row) => score(row, state.one) - score(row, state.other),
      worst: (row) => score(row, state.one), best: (row) => -score(row, state.one),
      longest: (row) => -row.words, order: (row) => row.number,
    };
    function passes(row) {
      const text = state.text.trim().toLowerCase();
      const inText = !text || String(row.number) === text ||
        [row.source, row.reference, ...row.translations].some((one) => one.toLowerCase().includes(text));
      const inBounds = !state.bounds || (state.bounds.field === "words"
        ? row.words >= state.bounds.from && row.words <= state.bounds.to
        : score(row, state.bounds.system) >= state.bounds.from && score(row, state.bounds.system) < state.bounds.to);
      return inText && inBounds && (!state.why || row.reasons.includes(state.why));
    }
    function card(row) {
      const chosen = several && state.other !== state.one ? [state.one, state.other] : [state.one];
      const scores = chosen.map((system) => `${block.systems[system]} ${score(row, system).toFixed(1)}`).join(", ");
      const difference = chosen.length === 2 ? score(row, state.one) - score(row, state.other) : null;
      return make("article", { class: "sentence-card" },
        make("p", { class: "facts" }, make("b", {}, `sentence ${row.number}`), ` · ${row.words} words · ${block.metric}: ${scores}`,
          difference === null ? "" : ` (${difference > 0 ? "+" : ""}${difference.toFixed(1)})`,
          row.has_map ? [" · ", make("button", { type: "button", class: "link", onclick: () => openMap(row.number) },
            "show its routing")] : ""),
        make("dl", {}, line("source", row.source), line("reference", row.reference),
          chosen.map((system) => line(block.systems[system], row.translations[system]
            ? marked(row.translations[system], row.reference) : "(empty)", "translation"))));
    }
    function update() {
      const rows = block.rows.filter(passes).sort((one, other) =>
        orders[state.sort](one) - orders[state.sort](other) || one.number - other.number);
      list.replaceChildren(...rows.slice(0, count).map(card));
      matches.textContent = `${rows.length} of ${block.rows.length} sentences of this report (the test set has ${block.total}).`;
      more.hidden = rows.length <= count;
      bounds.hidden = !state.bounds;
      if (state.bounds) bounds.textContent = `${state.bounds.name} ×`;
    }
    function filter(next) {
      state.bounds = next;
      count = AT_ONCE;
      update();
      list.parentNode.scrollIntoView();
    }
    update();
    const node = make("div", { class: "sentences" }, controls, bounds, matches, list, more,
      make("p", { class: "caption" }, block.caption));
    return { node, filter };
  }

  return { show };
})();
