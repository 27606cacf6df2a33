// Starts the maps in their frame, and tells the page around it how high they are.
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
