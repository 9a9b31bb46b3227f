import { Link, type LinkProps } from "@chakra-ui/react";
import { Link as RouterLink } from "react-router-dom";

/** A link to one of our pages or the host's, without a reload; see `routes.ts`. */
export function AppLink({ to, children, ...props }: LinkProps & { to: string }) {
  return (
    <Link asChild color="fg.info" {...props}>
      <RouterLink to={to}>{children}</RouterLink>
    </Link>
  );
}
