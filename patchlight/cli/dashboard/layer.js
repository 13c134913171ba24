// A layer of shapes of picture.py: [tag, attributes, text or shapes]. Existing nodes are modified.
import { toRaw } from "vue";

const SVG = "http://www.w3.org/2000/svg";

// Changes a node from one shape (or none) to another.
function draw(parent, node, shape, before) {
  const [tag, attributes, inside] = shape;
  if (before?.[0] !== tag) {
    const made = document.createElementNS(SVG, tag);
    if (node) node.replaceWith(made);
    else parent.append(made);
    node = made;
    before = [tag, {}, ""];
  }
  const [, attributesBefore, insideBefore] = before;
  for (const name in attributesBefore) {
    if (!(name in attributes)) node.removeAttribute(name);
  }
  for (const name in attributes) {
    if (attributes[name] !== attributesBefore[name]) node.setAttribute(name, attributes[name]);
  }
  if (typeof inside === "string") {
    if (inside === insideBefore) return node;
    if (node.firstChild) node.firstChild.data = inside;
    else node.textContent = inside;
  } else {
    inside.forEach((each, n) => draw(node, node.childNodes[n], each, insideBefore[n]));
    while (node.childNodes.length > inside.length) node.lastChild.remove();
  }
  return node;
}

export default {
  emits: ["missed"],
  template: `<div><svg ref="svg"></svg></div>`,
  created() {
    this.shown = new Map(); // a node and its shape, by name
  },
  props: { differ: Array },
  watch: {
    differ(differ) {
      this.alter(...toRaw(differ));
    },
  },
  mounted() {
    if (this.differ) this.alter(...toRaw(this.differ));
  },
  methods: {
    alter(number, all_again, size, differ) {
      const { svg } = this.$refs;
      if (number === this.number) return;
      if (all_again) {
        svg.replaceChildren();
        this.shown.clear();
      } else if (number !== this.number + 1) {
        this.$emit("missed");
        return;
      }
      this.number = number;
      svg.setAttribute("viewBox", size);
      for (const [name, shape] of Object.entries(differ)) {
        const [node, before] = this.shown.get(name) ?? [];
        if (shape) this.shown.set(name, [draw(svg, node, shape, before), shape]);
        else if (this.shown.delete(name)) node.remove();
      }
    },
  },
};
