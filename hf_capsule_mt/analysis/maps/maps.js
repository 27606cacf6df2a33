// Draws interactive maps of routing from the JSON that Python wrote. Words of users only ever become text nodes.
const capsuleMaps = (() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const GROUPS = ["past", "future", "redundant"];
  let unique = 0;

  function add(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }
  const make = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
  const draw = (tag, attributes, ...children) => add(document.createElementNS(SVG, tag), attributes, children);
  const percent = (share) => `${Math.round(share)} %`;
  const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

  // Buttons in a row: hover, focus or click chooses one, the arrow keys move on.
  function choices(labels, name, start, onChoice) {
    const buttons = labels.map((label, index) =>
      make("button", {
        type: "button", class: "choice", dir: "auto", "aria-pressed": String(index === start),
        onmouseenter: () => choose(index), onfocus: () => choose(index), onclick: () => choose(index),
        onkeydown: (event) => {
          const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          buttons[(index + step + buttons.length) % buttons.length].focus();
        },
      }, label));
    function choose(index) {
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === index)));
      onChoice(index);
    }
    return make("div", { class: "choices", role: "group", "aria-label": name }, buttons);
  }

  function stepper(count, onStep) {
    let current = count - 1;
    const label = make("output", { class: "iteration" });
    const back = make("button", { type: "button", "aria-label": "previous iteration", onclick: () => go(-1) }, "‹");
    const on = make("button", { type: "button", "aria-label": "next iteration", onclick: () => go(1) }, "›");
    function go(step) {
      current = Math.min(count - 1, Math.max(0, current + step));
      label.textContent = `iteration ${current + 1} of ${count}`;
      back.disabled = current === 0;
      on.disabled = current === count - 1;
      if (step) onStep(current);
    }
    go(0);
    return count > 1 ? make("div", { class: "stepper" }, back, label, on) : null;
  }

  // A grid of cells in SVG. `cell(row, column)` is {parts: [[class, from, to, opacity]…], text, title}. Rows from
  // `contrastFrom` on are the contrasting case, which a gap and a dashed line set apart.
  function grid({ rows, columns, cell, contrastFrom = rows.length, width = 30, height = 20, onRow, turned = true }) {
    const left = 14 + 7 * Math.min(16, Math.max(...rows.map((row) => row.length)));
    const longest = Math.max(...columns.map((column) => Math.min(14, column.length)));
    const top = turned ? 16 + 5 * longest : 18;
    const y = (row) => top + row * height + (row >= contrastFrom ? 10 : 0);
    const size = [left + columns.length * width + (turned ? 5 * longest : 4), y(rows.length - 1) + height + 4];
    const picture = draw("svg", { width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`, role: "img" });
    columns.forEach((column, index) => {
      const [x, base] = [left + (index + 0.5) * width, top - 6];
      picture.append(draw("text", {
        x, y: base, class: "label", "text-anchor": turned ? "start" : "middle",
        transform: turned ? `rotate(-45 ${x} ${base})` : null,
      }, short(column, 14)));
    });
    const lines = rows.map((row, index) => {
      const line = draw("g", { class: "grid-row", onmouseenter: onRow ? () => onRow(index) : () => {} });
      line.append(draw("text", { x: left - 8, y: y(index) + height / 2 + 4, class: "label", "text-anchor": "end" },
        short(row, 16)));
      columns.forEach((_, column) => {
        const { parts, text, title } = cell(index, column);
        const box = draw("g", {}, draw("title", {}, title));
        const inner = [left + column * width + 1, y(index) + 1, width - 2, height - 2];
        box.append(draw("rect", { x: inner[0], y: inner[1], width: inner[2], height: inner[3], class: "cell" }));
        for (const [name, from, to, opacity] of parts) {
          const range = Math.max(0, Math.min(100, to) - from);
          box.append(draw("rect", {
            x: inner[0] + (from / 100) * inner[2], y: inner[1], width: (range / 100) * inner[2], height: inner[3],
            class: name, "fill-opacity": opacity === undefined ? 1 : opacity,
          }));
        }
        if (text) {
          box.append(draw("text", {
            x: inner[0] + inner[2] / 2, y: y(index) + height / 2 + 4, class: "number", "text-anchor": "middle",
          }, text));
        }
        line.append(box);
      });
      if (index === contrastFrom) {
        line.prepend(draw("line", { x1: 4, x2: size[0] - 4, y1: y(index) - 5, y2: y(index) - 5, class: "apart" }));
      }
      picture.append(line);
      return line;
    });
    return { node: make("div", { class: "scroll", tabindex: 0 }, picture), lines };
  }

  // SVG patterns for the three groups, so that they differ without colour.
  function patterns() {
    const name = `stripes-${(unique += 1)}`;
    const stripes = draw("pattern", { id: name, width: 5, height: 5, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" },
      draw("rect", { width: 5, height: 5, class: "future-light" }),
      draw("rect", { width: 2.5, height: 5, class: "future" }));
    const node = draw("svg", { width: 0, height: 0, "aria-hidden": "true", class: "patterns" },
      draw("defs", {}, stripes));
    return { node, name };
  }

  function numbers(header, rows) {
    return make("details", { class: "numbers" }, make("summary", {}, "Numbers"),
      make("div", { class: "scroll", tabindex: 0 }, make("table", {},
        make("thead", {}, make("tr", {}, header.map((text) => make("th", { scope: "col", dir: "auto" }, text)))),
        make("tbody", {}, rows.map((row) => make("tr", {},
          row.map((text, index) => make(index ? "td" : "th", { dir: "auto" }, String(text)))))))));
  }

  const replace = (place, ...nodes) => place.replaceChildren(...nodes.filter((node) => node));

  // Figure 4 of GDR: data.shares[iteration][target word][source word] = [past, future, redundant] in percent.
  function pastFuture(data) {
    let [step, iteration] = [0, data.shares.length - 1];
    const [sentence, overview, said, table] = ["div", "div", "p", "div"].map((tag) => make(tag));
    sentence.className = "sentence";
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
      const strongestOf = (word) => groups.reduce((best, _, place) => (word[place] > word[best] ? place : best), 0);
      replace(sentence, ...data.source.map((word, index) => {
        const strongest = strongestOf(shares[index]);
        return make("span", { class: "word", title: spoken(shares[index]) },
          make("span", { class: "word-text", dir: "auto" }, word),
          make("span", { class: "bar", "aria-hidden": "true" }, stretches(shares[index]).map(([group, from, to]) => {
            const piece = make("span", { class: `piece ${group}` });
            piece.style.left = `${from}%`;
            piece.style.width = `${Math.max(0, to - from)}%`;
            return piece;
          })),
          make("span", { class: "share" }, `${groups[strongest]} ${percent(shares[index][strongest])}`));
      }));
      const of = (place) => data.source.filter((_, index) => strongestOf(shares[index]) === place).join(" ") || "–";
      said.textContent = overWords
        ? `After “${data.target[step]}”: past and future each share out 100 % over the source.`
        : `After “${data.target[step]}”: ${groups.map((group, place) => `${group}: ${of(place)}`).join("; ")}`;
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

  // Table 4 of CapsNMT: data.shares[iteration][word][capsule] in percent.
  function capsules(data) {
    const count = data.shares[0][0].length;
    let [chosen, iteration] = [0, data.shares.length - 1];
    const [sentence, overview, said, table] = ["div", "div", "p", "div"].map((tag) => make(tag));
    sentence.className = "sentence";
    said.className = "said";
    said.setAttribute("aria-live", "polite");
    const names = Array.from({ length: count }, (_, index) => `capsule ${index + 1}`);
    let lines = [];
    const most = Math.max(...data.shares.flat(2), 1);
    function showSentence() {
      const shares = data.shares[iteration].map((word) => word[chosen]);
      replace(sentence, ...data.words.map((word, index) => {
        const text = make("span", { class: "word-text coloured", dir: "auto" }, word);
        text.style.setProperty("--strength", `${Math.round((100 * shares[index]) / most)}%`);
        return make("span", { class: "word", title: percent(shares[index]) }, text,
          make("span", { class: "share" }, percent(shares[index])));
      }));
      const order = data.words.map((word, index) => [shares[index], word]).sort((one, two) => two[0] - one[0]);
      said.textContent = `Capsule ${chosen + 1} takes most of: ` +
        order.slice(0, 3).map(([share, word]) => `${word} (${percent(share)})`).join(", ") + ".";
      lines.forEach((line, index) => line.classList.toggle("chosen", index === chosen));
    }
    function showOverview() {
      const rows = [...names, data.contrast_name];
      const share = (row, column) => (row < count ? data.shares[iteration][column][row] : 100 / count);
      const made = grid({
        rows, columns: data.words, contrastFrom: count, width: 34, height: 22,
        onRow: (row) => { if (row < count) choose(row); },
        cell: (row, column) => ({
          parts: [["heat", 0, 100, share(row, column) / most]], text: String(Math.round(share(row, column))),
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
    const buttons = choices(names, "capsules", chosen, (index) => { chosen = index; showSentence(); });
    const steps = stepper(data.shares.length, (next) => { iteration = next; showOverview(); showSentence(); });
    showOverview();
    showSentence();
    return [[make("h4", {}, "Choose a capsule"), buttons, steps, make("h4", {}, "The sentence in its colour"), sentence,
      said], [make("h4", {}, "All capsules"), overview, table]];
  }

  // Figure 4 of DLA: data.mean[iteration][input][column], in percent of a uniform share; data.positions likewise.
  function routing(data) {
    let [position, iteration] = [0, data.mean.length - 1];
    const [overview, said, table] = ["div", "p", "div"].map((tag) => make(tag));
    said.className = "said";
    said.setAttribute("aria-live", "polite");
    const matrix = () => (position === 0 ? data.mean : data.positions[position - 1])[iteration];
    const strongest = () => Math.max(...(position === 0 ? data.mean : data.positions[position - 1]).flat(2), 200);
    const names = ["mean", ...data.position_names];
    function show() {
      const [rows, values, most] = [[...data.inputs, data.contrast_name], matrix(), strongest()];
      const value = (row, column) => (row < data.inputs.length ? values[row][column] : 100);
      const made = grid({
        rows, columns: data.columns, contrastFrom: data.inputs.length, turned: false, height: 22,
        width: data.columns.length > 12 ? 14 : 44,
        cell: (row, column) => ({
          parts: [["heat", 0, 100, value(row, column) / most]],
          text: data.columns.length > 12 ? null : (value(row, column) / 100).toFixed(2),
          title: `${rows[row]} to capsules ${data.column_names[column]}: ${(value(row, column) / 100).toFixed(2)} ` +
            "times the uniform share",
        }),
      });
      replace(overview, made.node);
      said.textContent = `Iteration ${iteration + 1}: entropy ${data.entropy[iteration].toFixed(2)} ` +
        `(uniform: ${data.uniform_entropy.toFixed(2)}), diversity ` +
        (data.diversity ? `${data.diversity[iteration].toFixed(2)} (uniform: 0.00).` : "–.") +
        ` The strongest colour is ${(most / 100).toFixed(1)} times the uniform share.`;
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

  return { make, draw, percent, short, numbers, choices, show };
})();
