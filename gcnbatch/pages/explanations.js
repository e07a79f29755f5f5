"use strict";
// Cards of explained molecules: a task colours the drawings; the list is sorted and filtered. Each drawing has the marks'
// values per task (per cent of the strongest), with half of each bond in its atoms or apart; its figures: prediction, sum,
// completeness error, and the sum of the features of the whole molecule if the model joins some, with the strongest ones.
const cards = [...document.querySelectorAll(".cards li")].map((item) => {
  const drawing = item.querySelector("svg, i");
  const numbers = (text) => text.split(";").map((of) => (of ? of.split(",").map(Number) : []));
  return {
    item,
    marks: [...drawing.querySelectorAll(".marks > *")],
    values: { atoms: numbers(drawing.dataset.atoms), apart: numbers(drawing.dataset.apart) },
    strongest: JSON.parse(drawing.dataset.strongest ?? "[]"),
    figures: numbers(drawing.dataset.figures),
    lines: [...item.querySelectorAll("span")],
    name: item.querySelector("strong").textContent,
    text: [...item.querySelectorAll("strong, span:last-child")].map((one) => one.textContent).join(" ").toLowerCase(),
  };
});
const controls = ["task", "marks", "order", "search", "least"].map((id) => document.getElementById(id));
const [task, marks, order, search, least] = controls;
const shown = document.getElementById("shown");
const figure = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(3))) : "–");

const signed = (value) => (value > 0 ? "+" : "") + figure(value);

function colour(card, at) {
  const values = card.values[marks.value][at];
  card.marks.forEach((mark, number) => {
    const value = values[number];
    mark.setAttribute("class", value > 0 ? "raises" : "lowers");
    mark.setAttribute("opacity", Math.abs(value) / 100);
  });
  const [prediction, sum, error, joined] = card.figures[at];
  card.lines[0].textContent = `${task.options[at].text}: ${figure(prediction)}`;
  card.lines[1].textContent = `sum ${figure(sum)}, completeness error ${figure(error)}`;
  if (card.lines.length > 3 && joined !== undefined) {
    const named = (card.strongest[at] ?? []).map(([name, value]) => `${name} ${signed(value)}`);
    card.lines[2].textContent = `atoms ${signed(sum - joined)}, features ${signed(joined)}: ${named.join(", ")}, …`;
  }
}

function arrange() {
  const at = task.selectedIndex;
  const keys = {
    input: () => 0,
    high: (card) => -card.figures[at][0],
    low: (card) => card.figures[at][0],
    error: (card) => -Math.abs(card.figures[at][2]),
  };
  const key = keys[order.value];
  const compare = (one, other) =>
    order.value === "name" ? one.name.localeCompare(other.name, undefined, { numeric: true }) : key(one) - key(other);
  const words = search.value.toLowerCase();
  const from = least.value === "" ? -Infinity : Number(least.value);
  const found = cards.filter((card) => card.text.includes(words) && !(card.figures[at][0] < from));
  for (const card of found) colour(card, at);
  list?.replaceChildren(...found.sort(compare).map((card) => card.item));
  shown.textContent = `${found.length} of ${cards.length}`;
}

const list = cards[0]?.item.parentElement;
for (const control of controls) control.addEventListener("input", arrange);
arrange();
