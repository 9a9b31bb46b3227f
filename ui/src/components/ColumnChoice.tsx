import { IconButton, Menu } from "@chakra-ui/react";
import { LuColumns3 } from "react-icons/lu";
import { CheckMenu } from "src/components/CheckMenu";
import type { Column } from "src/components/table";

/** Which columns a table shows; `onChange` gets none when they are those that it shows by itself. */
export function ColumnChoice<Row>({
  columns,
  shown,
  onChange,
}: {
  columns: readonly Column<Row>[];
  shown: readonly Column<Row>[];
  onChange: (keys: string[]) => void;
}) {
  const isShown = (column: Column<Row>) => shown.includes(column);
  const set = (key: string, checked: boolean) => {
    const next = columns.filter((each) => (each.key === key ? checked : isShown(each)));
    const usual = columns.every((each) => next.includes(each) === (each.fixed || !each.optional));
    onChange(usual ? [] : next.map((each) => each.key));
  };
  return (
    <CheckMenu
      trigger={
        <IconButton size="sm" variant="outline" colorPalette="gray" aria-label="Choose columns" title="Choose columns">
          <LuColumns3 />
        </IconButton>
      }
      items={columns.map((column) => ({
        value: column.key,
        label: column.label,
        checked: isShown(column),
        disabled: column.fixed,
      }))}
      onCheck={set}
    >
      <Menu.Separator />
      <Menu.Item value="reset" onSelect={() => onChange([])}>
        Reset
      </Menu.Item>
    </CheckMenu>
  );
}
