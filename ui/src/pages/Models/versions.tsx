import { Badge, type BadgeProps } from "@chakra-ui/react";
import { StateBadge } from "src/components/StateBadge";

const PALETTES = ["blue", "teal", "purple", "orange", "pink", "cyan"] as const;

/** The palette of a version: the same in bars, charts and badges, wherever it is shown. */
export function versionPalette(version: number): (typeof PALETTES)[number] {
  return PALETTES[(version - 1) % PALETTES.length] ?? "blue";
}

/** A version's number, in its colour. */
export function VersionBadge({ version, ...props }: BadgeProps & { version: number }) {
  return (
    <Badge colorPalette={versionPalette(version)} variant="surface" fontVariantNumeric="tabular-nums" {...props}>
      v{version}
    </Badge>
  );
}

/** Champion or challenger; nothing for a version that serves nothing. */
export function RoleBadge({ role }: { role: string | null }) {
  return role ? <StateBadge state={role} size="sm" /> : null;
}
