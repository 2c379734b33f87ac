// Shows the values under the pointer: those of the nearest step of a chart of curves, or the text of a point.
const tip = document.getElementById("tip");
function show(text, event) {
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 14 + box.width > innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX - 14 - box.width : event.clientX + 14) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + "px";
}
const number = (value) => (Math.abs(value) >= 1e5 ? Math.round(value) : Number(value.toPrecision(5))).toString();
for (const svg of document.querySelectorAll("svg[data-series]")) {
  const series = JSON.parse(svg.dataset.series), cursor = svg.querySelector(".cursor");
  svg.addEventListener("pointermove", (event) => {
    const place = (event.clientX - svg.getBoundingClientRect().left) * svg.viewBox.baseVal.width / svg.clientWidth;
    const near = series.map((one) => one.points.reduce((a, b) =>
      Math.abs(b[2] - place) < Math.abs(a[2] - place) ? b : a));
    const nearest = near.reduce((a, b) => Math.abs(b[2] - place) < Math.abs(a[2] - place) ? b : a);
    for (const [name, value] of [["x1", nearest[2]], ["x2", nearest[2]], ["y1", 12], ["y2", 184]])
      cursor.setAttribute(name, value);
    cursor.style.visibility = "visible";
    const lines = series.map((one, i) => one.name + ": " + number(near[i][1]) +
      (near[i][0] === nearest[0] ? "" : " (" + svg.dataset.x + " " + number(near[i][0]) + ")"));
    show(svg.dataset.x + " " + number(nearest[0]) + "\n" + lines.join("\n"), event);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    tip.style.display = "none";
  });
}
for (const point of document.querySelectorAll("[data-tip]")) {
  point.addEventListener("pointerenter", (event) => show(point.dataset.tip, event));
  point.addEventListener("pointerleave", () => (tip.style.display = "none"));
  point.addEventListener("focus", () => {
    const box = point.getBoundingClientRect();
    show(point.dataset.tip, { clientX: box.right, clientY: box.bottom });
  });
  point.addEventListener("blur", () => (tip.style.display = "none"));
}
