// Sets the theme before the first paint, so it is a plain script and not a module.
(() => {
  const names = ["system", "light", "dark"];
  const read = () => {
    try {
      const kept = localStorage.getItem("ramrack-theme");
      return names.includes(kept) ? kept : "system";
    } catch {
      return "system"; // Storage may be forbidden; the page works without.
    }
  };
  const apply = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  };
  apply(read());
  window.ramrackTheme = {
    read,
    next() {
      const name = names[(names.indexOf(read()) + 1) % names.length];
      try {
        localStorage.setItem("ramrack-theme", name);
      } catch {
        // As above: it holds until the page is loaded again.
      }
      apply(name);
      return name;
    },
  };
})();
