export { StudiesView as default } from "src/extensions/experiments/StudiesView";
