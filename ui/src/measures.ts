/** Measures of distance between two distributions, as people call them: the monitoring's names, and the schema's. */

const NAMES: Record<string, string> = {
  distance: "distance, as a share of rows",
  jensen_shannon: "Jensen-Shannon divergence",
  kolmogorov_smirnov: "Kolmogorov-Smirnov statistic",
  l_infinity: "L-infinity distance",
  normalized_abs_difference: "normalized absolute difference",
  population_stability_index: "population stability index",
  wasserstein: "Wasserstein distance",
  wasserstein_normalized: "Wasserstein distance ÷ standard deviation",
};

const OF_SCHEMA: Record<string, string> = {
  infinity_norm: "l_infinity",
  l_infty: "l_infinity",
  jensen_shannon_divergence: "jensen_shannon",
  normalized_absolute_difference: "normalized_abs_difference",
};

const SHORT: Record<string, string> = {
  l_infinity: "L∞",
  jensen_shannon: "JS",
  kolmogorov_smirnov: "KS",
  maximum_mean_discrepancy: "MMD",
  normalized_abs_difference: "|Δ|",
};

/** One name for a measure, whoever names it. */
function usual(measure: string): string {
  const name = measure.toLowerCase();
  return OF_SCHEMA[name] ?? name;
}

/** A measure in full. */
export const measureName = (measure: string): string => NAMES[usual(measure)] ?? measure.replaceAll("_", " ");

/** A measure in little space: `L∞`. */
export const measureSymbol = (measure: string): string => SHORT[usual(measure)] ?? measureName(measure);
