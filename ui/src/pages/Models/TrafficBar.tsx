import { Box, Flex, Text } from "@chakra-ui/react";
import { versionPalette } from "src/pages/Models/versions";

export interface Share {
  version: number;
  percent: number;
}

/** By size: the height, and the size of the text; a thin bar has none. */
const SIZES = {
  thin: { height: "8px", fontSize: "2xs" },
  compact: { height: "16px", fontSize: "2xs" },
  full: { height: "28px", fontSize: "xs" },
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
  const { height, fontSize } = SIZES[size];
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
          wrap="wrap"
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
          {size !== "thin" && (
            <>
              {/* A label that does not fit beside this goes to the next line, which is hidden: none is cut. */}
              <Box width="1px" height="full" />
              <Text as="span" lineHeight={height}>
                v{version} {percent}%
              </Text>
            </>
          )}
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
