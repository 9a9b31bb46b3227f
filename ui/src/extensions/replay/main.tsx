export { BacktestsTab as default } from "src/extensions/replay/BacktestsTab";
