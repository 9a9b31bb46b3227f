import { Badge, type BadgeProps } from "@chakra-ui/react";

const PALETTES = ["blue", "teal", "purple", "orange", "pink", "cyan"] as const;

/** The palette of a version: the same in bars, charts and badges, wherever it is shown. */
export function versionPalette(version: number): (typeof PALETTES)[number] {
  return PALETTES[(version - 1) % PALETTES.length] ?? "blue";
}

/** A model that was evaluated: its version, or null of a candidate that was refused, and never became one. */
export type Evaluated = number | null;

export const nameOf = (version: Evaluated): string => (version === null ? "candidate" : `v${version}`);

/** A version's number, in its colour. */
export function VersionBadge({ version, ...props }: BadgeProps & { version: Evaluated }) {
  const palette = version === null ? "gray" : versionPalette(version);
  return (
    <Badge colorPalette={palette} variant="surface" fontVariantNumeric="tabular-nums" {...props}>
      {nameOf(version)}
    </Badge>
  );
}
