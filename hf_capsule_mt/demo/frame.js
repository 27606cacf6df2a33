// Starts the maps in their frame, and tells the page around it how high they are and what was chosen in the first one.
const shown = document.getElementById("maps");
for (const map of JSON.parse(document.getElementById("data").textContent).maps) capsuleMaps.show(shown, map);
const sayHeight = () => {
  if (window.innerWidth < 100) return;  // not laid out yet: every word would take a line
  const capsuleMapHeight = Math.ceil(document.body.getBoundingClientRect().height) + 2;
  window.parent.postMessage({ capsuleMapHeight }, "*");
};
new ResizeObserver(sayHeight).observe(document.body);
sayHeight();
// The page may start to listen later than the frame starts to speak.
for (const delay of [300, 1500]) setTimeout(sayHeight, delay);

const first = shown.querySelector(".map");
const buttons = () => [...first.querySelectorAll(".choice")];
const iteration = () => Number(first.querySelector(".iteration")?.dataset.iteration ?? 0);  // 0: it has only one
new MutationObserver(() => {
  const choice = buttons().findIndex((one) => one.getAttribute("aria-pressed") === "true") + 1;
  window.parent.postMessage({ capsuleMapChosen: { choice, iteration: iteration() } }, "*");
}).observe(first, { subtree: true, attributeFilter: ["aria-pressed", "data-iteration"] });
// The page asks for what a link says. Links come from strangers: what the map does not have changes nothing.
window.addEventListener("message", (event) => {
  const wanted = event.data && event.data.capsuleMapChoice;
  if (!wanted) return;
  buttons()[wanted.choice - 1]?.click();
  if (!(wanted.iteration >= 1)) return;
  const back = first.querySelector(".stepper button");
  while (back && !back.disabled && iteration() > wanted.iteration) back.click();
});
