import { Flex } from "@chakra-ui/react";

/** A part of a whole. */
export interface Share {
  label: string;
  percent: number;
  palette: string;
}

/** Shares of a whole beside each other: the traffic of versions, for instance. */
export function ShareBar({
  shares,
  label,
  height = "8px",
}: {
  shares: readonly Share[];
  label: string;
  height?: string;
}) {
  return (
    <Flex
      role="img"
      aria-label={label}
      title={label}
      height={height}
      width="full"
      gap="1px"
      borderRadius="sm"
      bg="bg.emphasized"
      overflow="hidden"
    >
      {shares
        .filter(({ percent }) => percent > 0)
        .map(({ label: name, percent, palette }) => (
          <Flex key={name} colorPalette={palette} bg="colorPalette.solid" width={`${percent}%`} minWidth="3px" />
        ))}
    </Flex>
  );
}
