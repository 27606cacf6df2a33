// Gives the frames of the maps the height that they ask for, and names what screen readers should announce.
window.addEventListener("message", (event) => {
  const height = event.data && event.data.capsuleMapHeight;
  if (!Number.isFinite(height)) return;
  for (const frame of document.querySelectorAll("iframe.demo-frame")) {
    if (frame.contentWindow === event.source) frame.style.height = `${Math.min(Math.max(height, 100), 8000)}px`;
  }
});
new MutationObserver((_, observer) => {
  const places = ["demo-status", "demo-source-words"].map((name) => document.getElementById(name));
  if (places.some((place) => !place)) return;
  for (const place of places) place.setAttribute("aria-live", "polite");
  observer.disconnect();
}).observe(document.documentElement, { childList: true, subtree: true });
// Asks for new warnings when the visitor has stopped editing the translation. Enter asks for them with the picture.
let pause;
for (const name of ["input", "keydown"]) {
  document.addEventListener(name, (event) => {
    if (!event.target.closest("#demo-translation")) return;
    if (name === "input" || event.key === "Enter") clearTimeout(pause);
    if (name === "input") pause = setTimeout(() => document.getElementById("demo-edit").click(), 200);
  });
}
// Says when the picture is not of the texts in the boxes, until it is drawn again.
const words = (text) => text.split(/\s+/).filter(Boolean).join(" ");
const compareWithPicture = () => {
  const drawn = document.querySelector("#demo-drawn .demo-drawn");
  if (!drawn) return;
  const view = new URLSearchParams(drawn.dataset.view);
  const differs = (name) => {
    const box = document.querySelector(`#demo-${name} textarea`);
    return Boolean(box) && words(box.value) !== words(view.get(name) ?? "");
  };
  const hide = (name, isHidden) => {
    const note = drawn.querySelector(name);
    if (note.hidden !== isHidden) note.hidden = isHidden;
  };
  const isOld = differs("source");
  hide(".demo-old-source", !isOld);
  hide(".demo-old-translation", isOld || !differs("translation"));
};
let comparison;
const compareSoon = () => {
  clearTimeout(comparison);
  comparison = setTimeout(compareWithPicture, 50); // when Gradio has filled all boxes of an answer
};
document.addEventListener("input", compareSoon);
new MutationObserver(compareSoon).observe(document.documentElement, { childList: true, subtree: true });
