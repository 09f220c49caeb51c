// Moving the timeline by keyboard, wheel, mouse or finger.

const KEYS = {
  ArrowLeft: (timeline) => timeline.move(-1),
  ArrowRight: (timeline) => timeline.move(1),
  PageUp: (timeline) => timeline.move(-timeline.span / 2),
  PageDown: (timeline) => timeline.move(timeline.span / 2),
  Home: (timeline) => timeline.move(-Infinity),
  End: (timeline) => timeline.move(Infinity),
  "+": (timeline) => timeline.zoom(1),
  "-": (timeline) => timeline.zoom(-1),
};

/** `stage` is the element that takes the focus. */
export function makeMovable(stage, timeline) {
  stage.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(timeline);
  });
  stage.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || !event.deltaX) return; // up and down scrolls the page
      event.preventDefault();
      timeline.move(event.deltaX / timeline.pixelsPerSecond);
    },
    { passive: false },
  );
  let held = null;
  stage.addEventListener("pointerdown", (event) => {
    if (event.target.closest("button")) return;
    held = event.clientX;
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (held === null) return;
    timeline.move((held - event.clientX) / timeline.pixelsPerSecond);
    held = event.clientX;
  });
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, () => (held = null));
}
