// Lets shapes with data-drag be dragged to shapes with data-drop, or off their present target.
export default {
  emits: ["dropped"],
  template: `<div ref="all" @pointerdown="begin"><slot></slot>
    <div ref="words" class="pl-drag-words" aria-hidden="true" hidden></div></div>`,
  unmounted() {
    this.forget();
  },
  methods: {
    begin(event) {
      const source = event.target.closest("[data-drag]");
      if (!source || event.button !== 0) return;
      event.preventDefault();
      this.source = source;
      source.classList.add("pl-dragged");
      this.listening = new AbortController();
      const { signal } = this.listening;
      window.addEventListener("pointermove", this.move, { signal });
      window.addEventListener("pointerup", this.end, { signal });
      window.addEventListener("pointercancel", this.forget, { signal });
    },
    under(event) {
      const found = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-drop]");
      return found && this.$refs.all.contains(found) ? found : null;
    },
    isOut({ clientX, clientY }) {
      const { left, right, top, bottom } = this.$refs.all.getBoundingClientRect();
      return clientX < left || clientX > right || clientY < top || clientY > bottom;
    },
    move(event) {
      const { words } = this.$refs;
      const target = this.under(event);
      if (target !== this.target) {
        this.target?.classList.remove("pl-target");
        target?.classList.add("pl-target");
        this.target = target;
      }
      const { name, drop, out } = this.source.dataset;
      let to = target?.dataset.to ?? "…";
      if (drop !== undefined && this.isOut(event)) to = out;
      words.textContent = `${name} → ${to}`;
      words.style.left = `${event.clientX + 14}px`;
      words.style.top = `${event.clientY + 14}px`;
      words.hidden = false;
    },
    end(event) {
      const { drag, drop } = this.source.dataset;
      const to = this.under(event)?.dataset.drop ?? (this.isOut(event) ? "" : undefined);
      this.forget();
      const isNew = to !== drop && to !== undefined && (to !== "" || drop !== undefined);
      if (isNew) this.$emit("dropped", { from: drag, at: drop ?? "", to });
    },
    forget() {
      this.listening?.abort();
      this.source?.classList.remove("pl-dragged");
      this.target?.classList.remove("pl-target");
      this.source = this.target = null;
      if (this.$refs.words) this.$refs.words.hidden = true;
    },
  },
};
