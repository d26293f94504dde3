"use strict";
const root = document.documentElement, button = document.getElementById("theme");
const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const show = () => { button.textContent = dark() ? "Light" : "Dark" };
const wanted = new URLSearchParams(location.search).get("theme") || new URLSearchParams(location.hash.slice(1)).get("theme");
if (wanted) root.style.colorScheme = wanted;
button.onclick = () => { root.style.colorScheme = dark() ? "light" : "dark"; show() };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
show();
for (const part of document.querySelectorAll("section.part"))
  for (const chip of part.querySelectorAll(".chips button"))
    chip.onclick = () => {
      const on = chip.getAttribute("aria-pressed") !== "true";
      chip.setAttribute("aria-pressed", on);
      for (const shape of part.querySelectorAll(`g[data-k="${chip.dataset.k}"]`)) shape.classList.toggle("on", on);
    };
