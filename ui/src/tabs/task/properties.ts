/** Reads what an artifact's properties say; they come as JSON of any form. */

type Properties = Record<string, unknown>;

export const textIn = (properties: Properties, name: string): string | null => {
  const value = properties[name];
  return typeof value === "string" || typeof value === "number" ? String(value) : null;
};

export const numberIn = (properties: Properties, name: string): number | null => {
  const value = properties[name];
  return typeof value === "number" ? value : null;
};

export const textsIn = (properties: Properties, name: string): string[] => {
  const value = properties[name];
  return Array.isArray(value) ? value.map(String) : [];
};

export const recordIn = (properties: Properties, name: string): Properties => {
  const value = properties[name];
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Properties) : {};
};
