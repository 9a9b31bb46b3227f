export { SharingPage as default } from "src/extensions/sharing/SharingPage";
