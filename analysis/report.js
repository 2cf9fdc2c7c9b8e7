"use strict";
// A click on a heading sorts by that column; what does not exist stays last in both directions.
for (const head of document.querySelectorAll("table.sortable thead th")) {
  head.querySelector("button").addEventListener("click", () => {
    const table = head.closest("table"), body = table.tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.children[head.cellIndex].dataset.sort;
    const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return up ? order(x, y) : order(y, x);
    });
    body.append(...rows);
  });
}
