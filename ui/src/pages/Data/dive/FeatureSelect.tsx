import type { Schemas } from "src/api/client";
import { Choice } from "src/components";

interface Props {
  label: string;
  value: string;
  features: readonly Schemas["RowsColumn"][];
  none?: string;
  width?: string;
  onChange: (name: string) => void;
}

const NUMBERS = ["number", "time"];

/** The choice of a feature, or of none. */
export function FeatureSelect({ label, value, features, none = "none", width = "150px", onChange }: Props) {
  const isNumber = ({ role }: Schemas["RowsColumn"]) => NUMBERS.includes(role ?? "");
  const named = (group: string, those: typeof features) => those.map(({ name }) => ({ value: name, group }));
  const isThere = value === "" || features.some(({ name }) => name === value);
  const values = [
    { value: "", label: none },
    ...(isThere ? [] : [{ value }]),
    ...named("Numbers", features.filter(isNumber)),
    ...named(
      "Categories",
      features.filter((each) => !isNumber(each)),
    ),
  ];
  return <Choice quiet label={label} value={value} values={values} width={width} onChange={onChange} />;
}
