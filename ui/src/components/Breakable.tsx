import { Fragment } from "react";

/** A name that breaks, where it has to, after a dot, a slash or an underscore. */
export function Breakable({ name }: { name: string }) {
  return name.split(/(?<=[._/])/).map((part, place) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: parts repeat, and have no other name.
    <Fragment key={place}>
      {part}
      <wbr />
    </Fragment>
  ));
}
