import { Badge } from "@chakra-ui/react";
import { LuBinary, LuBraces, LuClock, LuHash, LuType } from "react-icons/lu";
import { LINE } from "src/pages/Data/overview/cells";
import { type FeatureRow, isConstant, type Roles } from "src/pages/Data/overview/features";

const ICONS = { num: LuHash, string: LuType, bytes: LuBinary, struct: LuBraces, none: LuBinary } as const;

/** A feature's name, its type, and what is special about it. */
export function Name({ row, roles }: { row: FeatureRow; roles: Roles }) {
  const Kind = row.name === roles.time ? LuClock : ICONS[row.kind];
  return (
    <div style={{ lineHeight: `${LINE}px` }}>
      <div title={row.name} data-feature={row.name}>
        {row.name}
      </div>
      <div data-type>
        <Kind size={12} aria-hidden />
        {row.type.toLowerCase()}
        {row.name === roles.label && (
          <Badge size="xs" title={roles.labelWords}>
            label
          </Badge>
        )}
        {row.name === roles.weight && <Badge size="xs">weight</Badge>}
        {row.name === roles.time && <Badge size="xs">time</Badge>}
        {isConstant(row) && (
          <Badge size="xs" colorPalette="orange">
            constant
          </Badge>
        )}
        {row.at.includes(-1) && (
          <Badge size="xs" colorPalette="orange">
            not in all
          </Badge>
        )}
      </div>
    </div>
  );
}
