import { IconButton, Menu } from "@chakra-ui/react";
import { LuColumns3 } from "react-icons/lu";
import { CheckMenu } from "src/components/CheckMenu";
import { type Column, chooseColumn } from "src/components/table";

interface Props<Row> {
  columns: readonly Column<Row>[];
  shown: readonly Column<Row>[];
  onChange: (change: (chosen: readonly string[]) => string[]) => void;
}

/** Which columns a table shows; `onChange` gets how the choice changes. */
export function ColumnChoice<Row>({ columns, shown, onChange }: Props<Row>) {
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
        checked: shown.includes(column),
        disabled: column.fixed,
      }))}
      onCheck={(key, checked) => onChange((chosen) => chooseColumn(columns, chosen, key, checked))}
    >
      <Menu.Separator />
      <Menu.Item value="reset" onSelect={() => onChange(() => [])}>
        Reset
      </Menu.Item>
    </CheckMenu>
  );
}
