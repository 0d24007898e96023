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
  const apply = () => {
    const choice = stored();
    document.documentElement.dataset.theme = choice === "auto" ? (system.matches ? "dark" : "light") : choice;
    document.dispatchEvent(new Event("themechange"));
  };
  window.toggleTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      const follows = (next === "dark") === system.matches;
      follows ? localStorage.removeItem(KEY) : localStorage.setItem(KEY, next);
      apply();
    } catch {
      document.documentElement.dataset.theme = next;
      document.dispatchEvent(new Event("themechange"));
    }
  };
  system.addEventListener("change", apply);
  apply();
}
