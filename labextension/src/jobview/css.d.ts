/** Style sheets are bundled as text: they belong into a shadow root. */
declare module '*.css' {
  const text: string;
  export default text;
}
