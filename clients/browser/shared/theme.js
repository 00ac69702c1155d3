/**
 * Dark or light. A classic script, loaded in the head before the styles, so that nothing flashes;
 * the choice stands in this browser's localStorage, and without one the system decides.
 */
(function () {
  "use strict";
  const STORED = "tocsin.theme";
  const root = document.documentElement;

  function chosen() {
    try {
      const value = localStorage.getItem(STORED);
      return value === "light" || value === "dark" ? value : null;
    } catch {
      return null; // storage is forbidden: the system decides
    }
  }

  function isDark() {
    const theme = root.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function tell() {
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      if (button.dataset.themeToggle === "words") {
        button.textContent = isDark() ? "Light" : "Dark"; // what pressing it gives
        button.setAttribute("aria-label", `${button.textContent} colours`);
      } else {
        button.setAttribute("aria-pressed", String(isDark()));
      }
    }
    root.dispatchEvent(new Event("themechange"));
  }

  function toggle() {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(STORED, root.dataset.theme);
    } catch {
      // It holds for this page, then.
    }
    tell();
  }

  const theme = chosen();
  if (theme) {
    root.dataset.theme = theme;
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.addEventListener("click", toggle);
    }
    tell();
  });
})();
