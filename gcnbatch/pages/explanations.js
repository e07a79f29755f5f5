"use strict";
// Cards of explained molecules: a task colours the drawings; the list is sorted and filtered. Each drawing has the marks'
// values per task (per cent of the strongest), and its figures: prediction, sum, completeness error.
const cards = [...document.querySelectorAll(".cards li")].map((item) => {
  const drawing = item.querySelector("svg, i");
  const numbers = (text) => text.split(";").map((of) => (of ? of.split(",").map(Number) : []));
  return {
    item,
    marks: [...drawing.querySelectorAll(".marks > *")],
    values: numbers(drawing.dataset.values),
    figures: numbers(drawing.dataset.figures),
    lines: [...item.querySelectorAll("span")],
    name: item.querySelector("strong").textContent,
    text: [...item.querySelectorAll("strong, span:nth-of-type(3)")].map((one) => one.textContent).join(" ").toLowerCase(),
  };
});
const [task, order, search, least] = ["task", "order", "search", "least"].map((id) => document.getElementById(id));
const shown = document.getElementById("shown");
const figure = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(3))) : "–");

function colour(card, at) {
  card.marks.forEach((mark, number) => {
    const value = card.values[at][number];
    mark.setAttribute("class", value > 0 ? "raises" : "lowers");
    mark.setAttribute("opacity", Math.abs(value) / 100);
  });
  const [prediction, sum, error] = card.figures[at];
  card.lines[0].textContent = `${task.options[at].text}: ${figure(prediction)}`;
  card.lines[1].textContent = `sum ${figure(sum)}, completeness error ${figure(error)}`;
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
for (const control of [task, order, search, least]) control.addEventListener("input", arrange);
arrange();
