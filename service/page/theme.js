// Applies the stored theme before the first paint. "auto" follows the system.
"use strict";
{
  const KEY = "rulserve-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // storage is off
    }
  };
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("themechange"));
  };
  const apply = () => {
    const choice = stored();
    show(choice === "auto" ? (system.matches ? "dark" : "light") : choice);
  };
  window.toggleTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      const follows = (next === "dark") === system.matches;
      follows ? localStorage.removeItem(KEY) : localStorage.setItem(KEY, next);
      apply();
    } catch {
      show(next);
    }
  };
  system.addEventListener("change", apply);
  addEventListener("beforeprint", () => { // paper is white
    const { theme } = document.documentElement.dataset;
    addEventListener("afterprint", () => show(theme), { once: true });
    show("light");
  });
  apply();
}
