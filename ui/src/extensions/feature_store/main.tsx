export { FeaturesPage as default } from "src/extensions/feature_store/FeaturesPage";
