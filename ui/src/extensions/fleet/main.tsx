export { FleetTab as default } from "src/extensions/fleet/FleetTab";
