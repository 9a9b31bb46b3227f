import { Box, chakra, HStack, Text } from "@chakra-ui/react";
import { versionPalette } from "src/pages/Models/versions";

export interface Share {
  version: number;
  percent: number;
}

/** Shares of the traffic as one bar, the versions in order; `compact` for a table's cell. */
export function TrafficBar({ shares, compact = false }: { shares: readonly Share[]; compact?: boolean }) {
  const taking = shares.filter(({ percent }) => percent > 0).toSorted((a, b) => a.version - b.version);
  const words = taking.map(({ version, percent }) => `version ${version} ${percent}%`).join(", ") || "no traffic";
  return (
    <HStack
      role="img"
      aria-label={`Traffic: ${words}`}
      title={words}
      gap="2px"
      height={compact ? "16px" : "28px"}
      width="full"
      borderRadius="sm"
      overflow="hidden"
      bg="bg.muted"
    >
      {taking.map(({ version, percent }) => (
        <Box
          key={version}
          width={`${percent}%`}
          height="full"
          display="flex"
          alignItems="center"
          justifyContent="center"
          colorPalette={versionPalette(version)}
          bg="colorPalette.solid"
          color="colorPalette.contrast"
          fontSize={compact ? "2xs" : "xs"}
          fontWeight="semibold"
          whiteSpace="nowrap"
          overflow="hidden"
          transition="width 0.4s"
        >
          {percent >= (compact ? 30 : 8) && (
            <chakra.span>
              v{version} {percent}%
            </chakra.span>
          )}
        </Box>
      ))}
      {taking.length === 0 && (
        <Text fontSize="xs" color="fg.muted" px={2}>
          nothing serves
        </Text>
      )}
    </HStack>
  );
}
