import { Badge } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";

const PALETTES = { champion: "success", challenger: "deferred", former: "gray" };

/** What serves of an artifact: the version, and its share of the traffic. */
export function ServedBadge({ mark }: { mark: Schemas["DeployedVersion"] }) {
  const share = mark.role === "former" ? "" : ` ${mark.traffic_percent}%`;
  return (
    <Badge
      size="xs"
      colorPalette={PALETTES[mark.role]}
      variant={mark.role === "former" ? "subtle" : "solid"}
      title={`${mark.model} version ${mark.version}, ${mark.role === "former" ? "served before" : mark.role}`}
    >
      {`v${mark.version}${share}`}
    </Badge>
  );
}
