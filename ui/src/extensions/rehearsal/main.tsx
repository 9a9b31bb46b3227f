export { RehearsalTab as default } from "src/extensions/rehearsal/RehearsalTab";
