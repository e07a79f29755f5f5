"use strict";
// A map: the choice colours the points from its lowest to its highest value; the pointer, or the arrow keys, show a point's
// molecule with its values.
const place = document.getElementById("points");
const points = [...place.querySelectorAll("circle")].map((dot, row) => ({
  dot,
  row,
  x: Number(dot.getAttribute("cx")),
  y: Number(dot.getAttribute("cy")),
  label: dot.querySelector("title").textContent,
  values: dot.dataset.values.split(",").map((text) => (text === "" ? NaN : Number(text))),
}));
const drawings = document.getElementById("drawings").children;
const names = JSON.parse(document.getElementById("names").dataset.names);
const colour = document.getElementById("colour");
const item = document.querySelector("#molecule li");
const STOPS = [[0, 114, 178], [190, 190, 190], [213, 94, 0]];
const figure = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(3))) : "–");
let chosen = 0;

function shade(share) {
  const at = share < 0.5 ? 0 : 1;
  const part = 2 * share - at;
  return `rgb(${STOPS[at].map((one, k) => Math.round(one + (STOPS[at + 1][k] - one) * part)).join(",")})`;
}

function paint() {
  const at = Number(colour.value);
  const known = points.map((point) => point.values[at]).filter(Number.isFinite);
  const low = Math.min(...known);
  const high = Math.max(...known);
  for (const { dot, values } of points) {
    const value = values[at];
    dot.setAttribute("fill", Number.isFinite(value) ? shade(high > low ? (value - low) / (high - low) : 0.5) : "none");
  }
  document.getElementById("low").textContent = figure(low);
  document.getElementById("high").textContent = figure(high);
}

function show(row) {
  points[chosen].dot.removeAttribute("class");
  chosen = row;
  const { dot, label, values } = points[row];
  dot.setAttribute("class", "chosen");
  const lines = names.map((name, at) => `${name}: ${figure(values[at])}`);
  const texts = [label, ...lines].map((text, number) => {
    const line = document.createElement(number ? "span" : "strong");
    line.textContent = text;
    return line;
  });
  item.replaceChildren(...[...drawings[row].children].map((one) => one.cloneNode(true)), ...texts);
}

const KEYS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

function move(event) {
  const way = KEYS[event.key];
  if (!way) return;
  event.preventDefault();
  const from = points[chosen];
  let best = chosen;
  let least = Infinity;
  for (const point of points) {
    const [x, y] = [point.x - from.x, point.y - from.y];
    const ahead = x * way[0] + y * way[1];
    const aside = Math.abs(x * way[1] + y * way[0]);
    if (ahead > 0 && aside <= ahead && ahead + aside < least) [best, least] = [point.row, ahead + aside];
  }
  show(best);
}

for (const { dot, row } of points) dot.addEventListener("pointerenter", () => show(row));
place.addEventListener("focus", () => show(chosen));
place.addEventListener("keydown", move);
colour.addEventListener("input", paint);
paint();
