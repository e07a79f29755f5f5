"use strict";
// A click on a heading sorts its table: numbers by value, missing ones last, else by text; a second click turns it over.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const words = heading.classList.contains("words");
      const before = heading.getAttribute("aria-sort") ?? (words ? "descending" : "ascending");
      const order = before === "ascending" ? "descending" : "ascending";
      const direction = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].firstChild?.textContent ?? "";
      const number = (text) => parseFloat(text.replaceAll(",", ""));
      const compare = (one, other) => {
        if (words) return direction * key(one).localeCompare(key(other), undefined, { numeric: true });
        const [a, b] = [number(key(one)), number(key(other))];
        if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
        return direction * (a - b);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
    });
  });
}
// Print shows what a click would: the plots of every fold.
const closed = [...document.querySelectorAll("details:not([open])")].filter((one) => one.querySelector("figure"));
addEventListener("beforeprint", () => closed.forEach((one) => (one.open = true)));
addEventListener("afterprint", () => closed.forEach((one) => (one.open = false)));
