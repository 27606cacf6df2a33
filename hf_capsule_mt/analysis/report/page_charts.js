// Charts of a report in SVG. Each series has a colour, a marker and a dash pattern of its own, and a legend.
const reportCharts = (() => {
  "use strict";
  const { make, draw, numbers } = capsuleParts;
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 2"];
  const COLOURS = 6;
  const HEIGHT = 270, LEFT = 52, RIGHT = 12, TOP = 12, BOTTOM = 46;

  const look = (series, index) => (series.contrast ? "series-contrast" : `series-${index % COLOURS}`);
  const isText = (cell) => typeof cell === "string" && !/^[-+<–\d]/.test(cell);
  const shown = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());

  function marker(index, x, y, contrast) {
    const size = 4;
    const corners = [
      null, [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.3], [1.2, 1], [-1.2, 1]],
      [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]], [[0, 1.3], [1.2, -1], [-1.2, -1]],
    ][contrast ? 0 : index % 5];
    if (contrast) return draw("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, class: "cross" });
    if (!corners) return draw("circle", { cx: x, cy: y, r: size });
    return draw("polygon", { points: corners.map(([dx, dy]) => `${x + size * dx},${y + size * dy}`).join(" ") });
  }

  function legend(series) {
    return make("div", { class: "legend" }, series.map((one, index) => make("span", {},
      draw("svg", { width: 34, height: 14, class: look(one, index), "aria-hidden": "true" },
        draw("line", { x1: 1, x2: 33, y1: 7, y2: 7, class: "line",
          "stroke-dasharray": one.contrast ? "1 4" : DASHES[index % DASHES.length] }),
        marker(index, 17, 7, one.contrast)),
      make("span", { dir: "auto" }, one.name))));
  }

  // Round numbers between low and high.
  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
    const marks = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) marks.push(at);
    return marks;
  }

  function range(values, withZero) {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (withZero && low > 0 && low < 0.6 * high) low = 0;
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low === 0 ? 0 : low - room, high + room];
  }

  function drawAtEveryWidth(place, redraw) {
    let before = 0;
    new ResizeObserver(() => {
      if (place.clientWidth !== before) { before = place.clientWidth; redraw(); }
    }).observe(place);
    redraw();
  }

  function lines(block, onPoint) {
    const place = make("div", { class: "plot" });
    const points = block.series.flatMap((one) => one.points);
    const marked = Math.max(...block.series.map((one) => one.points.length)) <= 20;
    const named = block.x_names || null;
    const xs = points.map((point) => point.x);
    const xRange = named ? [-0.5, named.length - 0.5] : range(xs, false);
    const ys = points.flatMap((point) => [point.y, point.low, point.high]).filter((y) => y !== null && y !== undefined);
    const yRange = range(ys, true);

    function redraw() {
      const width = Math.max(280, Math.min(860, place.clientWidth || 640));
      const x = (value) => LEFT + ((value - xRange[0]) / (xRange[1] - xRange[0])) * (width - LEFT - RIGHT);
      const y = (value) => TOP + ((yRange[1] - value) / (yRange[1] - yRange[0])) * (HEIGHT - TOP - BOTTOM);
      const picture = draw("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
        "aria-label": `${block.title}; the numbers are in the table below` });
      for (const mark of ticks(...yRange, 5)) {
        picture.append(draw("line", { x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark), class: "guide" }),
          draw("text", { x: LEFT - 7, y: y(mark) + 4, "text-anchor": "end", class: "label" }, shown(mark)));
      }
      const xMarks = named ? named.map((_, index) => index) : ticks(...xRange, width < 460 ? 4 : 8);
      const every = named ? Math.ceil((named.length * 62) / (width - LEFT)) : 1;
      xMarks.filter((_, index) => index % every === 0).forEach((mark) => picture.append(
        draw("text", { x: x(mark), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", class: "label" },
          named ? named[mark] : shown(mark))));
      picture.append(
        draw("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "label" },
          block.x_label));
      block.series.forEach((one, index) => {
        const group = draw("g", { class: look(one, index) });
        const bounded = one.points.filter((point) => point.low !== undefined && point.low !== null);
        if (bounded.length > 1) {
          const edge = [...bounded.map((point) => [point.x, point.high]),
            ...bounded.slice().reverse().map((point) => [point.x, point.low])];
          group.append(draw("polygon", { class: "band", points: edge.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
        }
        const path = one.points.map((point, at) => `${at ? "L" : "M"}${x(point.x)} ${y(point.y)}`).join("");
        group.append(draw("path", { d: path, class: "line",
          "stroke-dasharray": one.contrast ? "1 4" : DASHES[index % DASHES.length] }));
        if (marked) {
          for (const point of one.points) {
            const at = named ? named[point.x] : shown(point.x);
            const spot = draw("g", { class: onPoint && point.filter ? "spot open" : "spot" },
              draw("title", {}, `${one.name}, ${at}: ${shown(point.y)}` +
                (point.low === undefined || point.low === null ? "" : ` (${shown(point.low)} to ${shown(point.high)})`) +
                (point.note ? `, ${point.note}` : "") + (onPoint && point.filter ? "; click for sentences" : "")),
              marker(index, x(point.x), y(point.y), one.contrast),
              draw("circle", { cx: x(point.x), cy: y(point.y), r: 11, class: "reach" }));
            if (onPoint && point.filter) spot.addEventListener("click", () => onPoint(point.filter));
            group.append(spot);
          }
        }
        if (!marked && one.points.length) {
          const last = one.points.at(-1);
          group.append(marker(index, x(last.x), y(last.y), one.contrast));
        }
        picture.append(group);
      });
      place.replaceChildren(picture);
    }
    drawAtEveryWidth(place, redraw);
    return figure(block, legend(block.series), make("p", { class: "axis" }, block.y_label), place, tableOf(block));
  }

  // All numbers of a chart: a row for each x, a column for each series.
  function tableOf(block) {
    const all = [...new Set(block.series.flatMap((one) => one.points.map((point) => point.x)))].sort((a, b) => a - b);
    const rows = all.map((x) => [block.x_names ? block.x_names[x] : shown(x), ...block.series.map((one) => {
      const point = one.points.find((candidate) => candidate.x === x);
      if (!point) return "";
      const bounds = point.low === undefined || point.low === null ? "" : ` (${shown(point.low)}–${shown(point.high)})`;
      return `${shown(point.y)}${bounds}`;
    })]);
    return numbers([block.x_label, ...block.series.map((one) => one.name)], rows);
  }

  // A row for each system: its score as a point, its interval as a line.
  function intervals(block) {
    const place = make("div", { class: "plot" });
    const values = block.rows.flatMap((row) => [row.value, row.low, row.high])
      .filter((value) => value !== null && value !== undefined);
    const bounds = range([...values, ...(block.from_zero ? [0] : [])], false);
    function redraw() {
      const width = Math.max(280, Math.min(860, place.clientWidth || 640));
      const [row, left] = [34, 8];
      const height = block.rows.length * row + 36;
      const x = (value) => left + ((value - bounds[0]) / (bounds[1] - bounds[0])) * (width - left - 16);
      const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
        "aria-label": `${block.title}; the numbers are in the table` });
      for (const mark of ticks(...bounds, width < 460 ? 4 : 8)) {
        picture.append(draw("line", { x1: x(mark), x2: x(mark), y1: 4, y2: height - 30, class: "guide" }),
          draw("text", { x: x(mark), y: height - 16, "text-anchor": "middle", class: "label" }, shown(mark)));
      }
      picture.append(draw("text", { x: width / 2, y: height - 2, "text-anchor": "middle", class: "label" }, block.x_label));
      block.rows.forEach((one, index) => {
        const y = 24 + index * row;
        const bounded = one.low !== undefined && one.low !== null;
        const interval = bounded ? ` (${shown(one.low)} to ${shown(one.high)})` : "";
        const start = Math.min(x(one.value), width - 9 * (one.name.length + 16));
        picture.append(draw("g", { class: look(one, index) },
          draw("title", {}, `${one.name}: ${shown(one.value)}${interval}`),
          bounded ? draw("line", { x1: x(one.low), x2: x(one.high), y1: y, y2: y, class: "interval" }) : "",
          marker(index, x(one.value), y, one.contrast),
          draw("text", { x: Math.max(left, start), y: y - 9, class: "number" }, `${one.name} ${shown(one.value)}${interval}`)));
      });
      place.replaceChildren(picture);
    }
    drawAtEveryWidth(place, redraw);
    return figure(block, place);
  }

  function figure(block, ...content) {
    return make("figure", { class: "chart" }, make("h3", {}, block.title), content,
      make("figcaption", {}, block.caption));
  }

  function table(block) {
    return make("figure", { class: "chart" }, block.title ? make("h3", {}, block.title) : null,
      make("div", { class: "scroll", tabindex: 0 }, make("table", {},
        make("thead", {}, make("tr", {}, block.header.map((text, index) => make("th",
          { scope: "col", dir: "auto", class: block.rows.some((row) => isText(row[index])) ? "text" : null }, text)))),
        make("tbody", {}, block.rows.map((row) => make("tr", {}, row.map((cell, index) =>
          make(index ? "td" : "th", { dir: "auto", scope: index ? null : "row", class: isText(cell) ? "text" : null },
            cell === null ? "–" : typeof cell === "number" ? shown(cell) : cell))))))),
      make("figcaption", {}, block.caption));
  }

  return { lines, intervals, table };
})();
