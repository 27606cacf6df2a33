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
