// Draws interactive maps of routing from the JSON that Python wrote.
const capsuleMaps = (() => {
  "use strict";
  const { make, choices, stepper, grid, patterns, numbers, replace } = capsuleParts;
  const GROUPS = ["past", "future", "redundant"];
  const percent = (share) => `${Math.round(share)} %`;
  // Percent of the uniform share that has the full colour. It is fixed, so that pictures can be compared.
  const STRONGEST = 400;

  // Figure 4 of GDR: data.shares[iteration][target word][source word] = [past, future, redundant] in percent.
  function pastFuture(data) {
    let [step, iteration] = [0, data.shares.length - 1];
    const [sentence, overview, said, table] = ["div", "div", "p", "div"].map((tag) => make(tag));
    sentence.className = "sentence";
    sentence.dir = "auto";
    said.className = "said";
    said.setAttribute("aria-live", "polite");
    const { node: stripes, name } = patterns();
    const overWords = data.sums_over === "words";
    const groups = overWords ? GROUPS.slice(0, 2) : GROUPS;
    // The shares of a cell as stretches of a bar. Attention has two bars of up to half the width, one from each end.
    const stretches = ([past, future, redundant]) => overWords
      ? [["past", 0, past / 2], ["future", 100 - future / 2, 100]]
      : [["past", 0, past], ["redundant", past, past + redundant], ["future", past + redundant, 100]];
    const spoken = (shares) => groups.map((group, index) => `${group} ${percent(shares[index])}`).join(", ");
    let lines = [];

    function showSentence() {
      const shares = data.shares[iteration][step];
      const strongestOf = (word) => {  // more than one if they are equal in percent
        const most = Math.max(...groups.map((_, place) => Math.round(word[place])));
        return groups.map((_, place) => place).filter((place) => Math.round(word[place]) === most);
      };
      replace(sentence, ...data.source.map((word, index) => {
        const strongest = strongestOf(shares[index]);
        const names = strongest.length === groups.length ? "each" : strongest.map((place) => groups[place]).join(", ");
        return make("span", { class: "word", title: spoken(shares[index]) },
          make("span", { class: "word-text" }, word),
          make("span", { class: "bar", "aria-hidden": "true" }, stretches(shares[index]).map(([group, from, to]) => {
            const piece = make("span", { class: `piece ${group}` });
            piece.style.left = `${from}%`;
            piece.style.width = `${Math.max(0, to - from)}%`;
            return piece;
          })),
          make("span", { class: "share" }, `${names} ${percent(shares[index][strongest[0]])}`));
      }));
      const wordsWhere = (test) => data.source.filter((_, index) => test(strongestOf(shares[index]))).join(" ");
      const of = (place) => wordsWhere((strongest) => strongest.length === 1 && strongest[0] === place) || "–";
      const equal = wordsWhere((strongest) => strongest.length > 1);
      said.textContent = overWords
        ? `At “${data.target[step]}”: past and future each share out 100 % over the source.`
        : `At “${data.target[step]}”: ${groups.map((group, place) => `${group}: ${of(place)}`).join("; ")}`
          + (equal ? `; equal shares: ${equal}` : "");
      lines.forEach((line, index) => line.classList.toggle("chosen", index === step));
    }
    function showOverview() {
      const rows = [...data.target, data.contrast_name];
      const cells = (row, column) =>
        row < data.target.length ? data.shares[iteration][row][column] : data.uniform;
      const made = grid({
        rows, columns: data.source, contrastFrom: data.target.length, width: 34, height: 18,
        onRow: (row) => { if (row < data.target.length) choose(row); },
        cell: (row, column) => ({
          parts: stretches(cells(row, column)),
          title: `${rows[row]} / ${data.source[column]}: ${spoken(cells(row, column))}`,
        }),
      });
      lines = made.lines;
      replace(overview, made.node);
      overview.style.setProperty("--stripes", `url(#${name})`);
      replace(table, numbers(["target \\ source", ...data.source], rows.map((word, row) =>
        [word, ...data.source.map((_, column) => groups.map((_, place) =>
          Math.round(cells(row, column)[place])).join(" / "))])));
    }
    function choose(index) {
      step = index;
      targets.querySelectorAll("button").forEach((button, other) =>
        button.setAttribute("aria-pressed", String(other === index)));
      showSentence();
    }
    const targets = choices(data.target, "target words", step, (index) => { step = index; showSentence(); });
    const steps = stepper(data.shares.length, (next) => { iteration = next; showOverview(); showSentence(); });
    showOverview();
    showSentence();
    const legend = make("div", { class: "legend" }, groups.map((group) =>
      make("span", {}, make("span", { class: `swatch ${group}` }), group)));
    return [[stripes, make("h4", {}, "Translation: choose a word"), targets, steps,
      make("h4", {}, "Source"), legend, sentence, said], [make("h4", {}, "All steps"), overview, table]];
  }

  // Table 4 of CapsNMT: data.shares[iteration][word][capsule] in percent. Likewise layers and heads in place of capsules.
  function capsules(data) {
    const { names, unit } = data;
    const count = names.length;
    let [chosen, iteration] = [0, data.shares.length - 1];
    const [sentence, overview, said, table] = ["div", "div", "p", "div"].map((tag) => make(tag));
    sentence.className = "sentence";
    sentence.dir = "auto";
    said.className = "said";
    said.setAttribute("aria-live", "polite");
    let lines = [];
    function showSentence() {
      const shares = data.shares[iteration].map((word) => word[chosen]);
      replace(sentence, ...data.words.map((word, index) => {
        const text = make("span", { class: "word-text coloured" }, word);
        text.style.setProperty("--strength", `${shares[index]}%`);
        return make("span", { class: "word", title: percent(shares[index]) }, text,
          make("span", { class: "share" }, percent(shares[index])));
      }));
      const order = data.words.map((word, index) => [shares[index], word]).sort((one, two) => two[0] - one[0]);
      const isEqual = order.length > 1 && order[0][0] === order[order.length - 1][0];
      said.textContent = `${names[chosen][0].toUpperCase()}${names[chosen].slice(1)} ` + (isEqual
        ? `has the same share at each word: ${percent(order[0][0])}.`
        : "has its largest shares at: " +
          order.slice(0, 3).map(([share, word]) => `${word} (${percent(share)})`).join(", ") + ".");
      lines.forEach((line, index) => line.classList.toggle("chosen", index === chosen));
    }
    function showOverview() {
      const rows = [...names, data.contrast_name];
      const share = (row, column) => (row < count ? data.shares[iteration][column][row] : 100 / count);
      const made = grid({
        rows, columns: data.words, contrastFrom: count, width: 34, height: 22,
        onRow: (row) => { if (row < count) choose(row); },
        cell: (row, column) => ({
          parts: [["heat", 0, 100, share(row, column) / 100]], text: String(Math.round(share(row, column))),
          title: `${rows[row]} / ${data.words[column]}: ${percent(share(row, column))}`,
        }),
      });
      lines = made.lines;
      replace(overview, made.node);
      replace(table, numbers(["% to", ...names], data.words.map((word, row) =>
        [word, ...names.map((_, capsule) => Math.round(data.shares[iteration][row][capsule]))])));
    }
    function choose(index) {
      chosen = index;
      buttons.querySelectorAll("button").forEach((button, other) =>
        button.setAttribute("aria-pressed", String(other === index)));
      showSentence();
    }
    const buttons = choices(names, `${unit}s`, chosen, (index) => { chosen = index; showSentence(); });
    const steps = stepper(data.shares.length, (next) => { iteration = next; showOverview(); showSentence(); });
    showOverview();
    showSentence();
    return [[make("h4", {}, `Choose a ${unit}`), buttons, steps, make("h4", {}, "The sentence in its colour"), sentence,
      said], [make("h4", {}, `All ${unit}s`), overview, table]];
  }

  // Figure 4 of DLA: data.mean[iteration][input][column], in percent of a uniform share; data.positions likewise.
  function routing(data) {
    let [position, iteration] = [0, data.mean.length - 1];
    const [overview, said, table] = ["div", "p", "div"].map((tag) => make(tag));
    said.className = "said";
    said.setAttribute("aria-live", "polite");
    const matrix = () => (position === 0 ? data.mean : data.positions[position - 1])[iteration];
    const names = ["mean", ...data.position_names];
    function show() {
      const [rows, values] = [[...data.inputs, data.contrast_name], matrix()];
      const value = (row, column) => (row < data.inputs.length ? values[row][column] : 100);
      const made = grid({
        rows, columns: data.columns, contrastFrom: data.inputs.length, turned: false, height: 22,
        width: data.columns.length > 12 ? 14 : 44,
        cell: (row, column) => ({
          parts: [["heat", 0, 100, Math.min(1, value(row, column) / STRONGEST)]],
          text: data.columns.length > 12 ? null : (value(row, column) / 100).toFixed(2),
          title: `${rows[row]} to capsules ${data.column_names[column]}: ${(value(row, column) / 100).toFixed(2)} ` +
            "times the uniform share",
        }),
      });
      replace(overview, made.node);
      said.textContent = `Iteration ${iteration + 1}, mean of all positions: entropy ${data.entropy[iteration].toFixed(2)} ` +
        `(uniform: ${data.uniform_entropy.toFixed(2)}), diversity ` +
        (data.diversity ? `${data.diversity[iteration].toFixed(2)} (uniform: 0.00).` : "–.");
      replace(table, numbers(["times uniform", ...data.column_names], data.inputs.map((input, row) =>
        [input, ...values[row].map((one) => (one / 100).toFixed(2))])));
    }
    const buttons = data.position_names.length
      ? choices(names, "positions", 0, (index) => { position = index; show(); }) : null;
    const steps = stepper(data.mean.length, (next) => { iteration = next; show(); });
    show();
    return [[buttons ? make("h4", {}, "Choose a position, or the mean of all") : null, buttons, steps, said],
      [overview, table]];
  }

  const drawings = { past_future: pastFuture, capsules, routing };

  function show(place, data) {
    const figure = make("figure", { class: `map map-${data.type}` },
      data.title ? make("h3", { dir: "auto" }, data.title) : null,
      make("div", { class: "map-body" }, drawings[data.type](data).map((column) => make("div", {}, column))),
      make("figcaption", {}, data.caption));
    place.append(figure);
    return figure;
  }

  return { show };
})();
