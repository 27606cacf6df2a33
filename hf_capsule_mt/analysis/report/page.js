// Puts the sections of a report together from the JSON in the page.
(() => {
  "use strict";
  const { make } = capsuleParts;
  const report = JSON.parse(document.getElementById("data").textContent);
  let sentences = null;
  let openMap = () => {};

  // One sentence at a time: its source, and the map of every system that has one.
  function maps(block) {
    const numbers = [...new Set(block.maps.map((one) => one.sentence))];
    const place = make("div", { id: "shown-maps" });
    const choice = make("select", { "aria-label": "sentence", onchange: (event) => open(Number(event.target.value)) },
      numbers.map((number) => {
        const { source } = block.maps.find((one) => one.sentence === number);
        return make("option", { value: number }, `${number}: ${source.length > 90 ? `${source.slice(0, 89)}…` : source}`);
      }));
    function open(number) {
      choice.value = String(number);
      place.replaceChildren();
      for (const one of block.maps.filter((candidate) => candidate.sentence === number)) capsuleMaps.show(place, one.map);
    }
    openMap = (number) => { open(number); place.parentNode.scrollIntoView(); };
    open(numbers[0]);
    return make("div", {}, make("div", { class: "controls" }, make("label", {}, "sentence ", choice)), place,
      make("p", { class: "caption" }, block.caption));
  }

  const blocks = {
    text: (block) => make("p", { class: "note", dir: "auto" }, block.text),
    table: reportCharts.table,
    intervals: reportCharts.intervals,
    lines: (block) => reportCharts.lines(block, (filter) => sentences && sentences.filter(filter)),
    sentences: (block) => {
      sentences = reportSentences.show(block, (number) => openMap(number));
      return sentences.node;
    },
    maps,
  };

  const main = document.querySelector("main");
  const contents = document.querySelector("nav");
  document.querySelector("h1").textContent = report.title;
  document.getElementById("about").textContent = report.about;
  for (const section of report.sections) {
    contents.append(make("a", { href: `#${section.id}` }, section.title));
    const place = make("section", { id: section.id }, make("h2", {}, section.title));
    main.append(place);
    for (const block of section.blocks) place.append(blocks[block.type](block));
  }
  document.body.dataset.ready = "yes";
})();
