import { Flex, Text } from "@chakra-ui/react";
import { versionPalette } from "src/pages/Models/versions";

export interface Share {
  version: number;
  percent: number;
}

/** By size: the height, the size of the text, and the least share that is labelled. */
const SIZES = {
  thin: { height: "8px", fontSize: "2xs", labelled: Number.POSITIVE_INFINITY },
  compact: { height: "16px", fontSize: "2xs", labelled: 30 },
  full: { height: "28px", fontSize: "xs", labelled: 8 },
} as const;

interface Props {
  shares: readonly Share[];
  size?: keyof typeof SIZES;
  words?: string;
}

/**
 * Shares of the traffic as one bar, the versions in order.
 *
 * @param words what it says to those who do not see it; by default version by version
 */
export function TrafficBar({ shares, size = "full", words }: Props) {
  const { height, fontSize, labelled } = SIZES[size];
  const taking = shares.filter(({ percent }) => percent > 0).toSorted((a, b) => a.version - b.version);
  const said =
    words ?? (taking.map(({ version, percent }) => `version ${version} ${percent}%`).join(", ") || "no traffic");
  return (
    <Flex
      role="img"
      aria-label={`Traffic: ${said}`}
      title={said}
      align="center"
      gap="2px"
      height={height}
      width="full"
      borderRadius="sm"
      overflow="hidden"
      bg="bg.muted"
    >
      {taking.map(({ version, percent }) => (
        <Flex
          key={version}
          width={`${percent}%`}
          minWidth="3px"
          height="full"
          align="center"
          justify="center"
          colorPalette={versionPalette(version)}
          bg="colorPalette.700"
          color="colorPalette.contrast"
          fontSize={fontSize}
          fontWeight="semibold"
          whiteSpace="nowrap"
          overflow="hidden"
          transition="width 0.4s"
        >
          {percent >= labelled && `v${version} ${percent}%`}
        </Flex>
      ))}
      {taking.length === 0 && size !== "thin" && (
        <Text fontSize="xs" color="fg.muted" px={2}>
          nothing serves
        </Text>
      )}
    </Flex>
  );
}
