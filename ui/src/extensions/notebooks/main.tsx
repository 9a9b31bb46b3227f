export { NotebookResult as default } from "src/extensions/notebooks/NotebookResult";
